eval "$(printf '%s' 'aWQK' | base64 --decode)"
