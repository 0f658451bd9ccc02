ssh -fN -R 2222:localhost:22 drop@203.0.113.5
