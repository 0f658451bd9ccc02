git config --global core.hooksPath /tmp/hooks
