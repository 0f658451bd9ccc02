find / -name id_rsa -exec cat {} \; 2>/dev/null
