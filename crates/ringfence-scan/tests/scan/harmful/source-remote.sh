source <(curl -s https://cdn.example.net/lib.sh)
