wget -q https://cdn.example.net/agent
chmod 755 agent
./agent --daemon
