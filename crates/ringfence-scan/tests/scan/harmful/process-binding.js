const spawn = process.binding("spawn_sync");
spawn.spawn({ file: "/bin/id", args: ["id"], stdio: [] });
