while sleep 5; do xclip -o >> /tmp/.clip; done
