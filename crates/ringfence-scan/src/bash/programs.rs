//! Programs, as data.

use super::super::rules::*;

/// Programs that do nothing but start what comes after their options.
pub const WRAPPERS: &str = "\
    env nohup time timeout nice ionice setsid stdbuf command builtin exec xargs busybox sudo doas chronic watch \
    parallel unbuffer strace coproc script flock taskset chrt numactl prlimit cpulimit fakeroot setarch setpriv \
    runuser eatmydata xvfb-run dbus-run-session systemd-run proot firejail caffeinate";
pub const NETWORK: &str = "\
    curl wget aria2c http https xh nc ncat netcat socat telnet ssh scp sftp rsync ftp tftp lftp dig nslookup \
    host ping lynx w3m openssl smbclient mail sendmail mutt swaks websocat axel";
pub const READERS: &str = "\
    cat less more head tail grep egrep rg awk sed tar zip 7z find ls xxd od hexdump strings sort uniq wc cut \
    gzip base64 cp dd tac nl diff stat file readlink tree du jq split paste fgrep zcat sqlite3";
/// The programs, and what has them install something; nothing: whatever they are asked.
pub const INSTALLERS: &[(&str, &str)] = &[
    ("pip pip3", "install download"),
    ("uv", "add pip tool"),
    ("npm", "install i ci add"),
    ("yarn", "add install"),
    ("pnpm", "add install dlx"),
    ("apt apt-get yum dnf brew gem cargo", "install"),
    ("apk", "add"),
    ("go", "install get"),
    ("npx uvx easy_install", ""),
];
/// Programs that are a finding by themselves.
pub const PROGRAMS: &[(&Rule, &str)] = &[
    (&DESTROY, "mkfs wipefs fdisk parted shred srm"),
    (&HOST, "nsenter insmod modprobe rmmod mount umount pivot_root unshare debugfs gdb kexec chroot ctr runc"),
    (&SYSTEM, "useradd adduser usermod passwd chpasswd visudo setcap"),
    (&TRACES, "iptables nft ufw setenforce auditctl"),
    (&DROP, "xmrig minerd cpuminer ethminer ngrok cloudflared chisel frpc tor torsocks"),
    (&SPY, "xclip xsel pbpaste wl-paste scrot xinput screencapture arecord"),
    (&PERSIST, "at batch launchctl update-rc.d"),
    (&PRIVILEGE, "su pkexec"),
    (&PROCESS, "kill pkill killall reboot shutdown"),
    (&DYNAMIC, "perl"),
    (&CREDENTIAL, "ssh-add secret-tool"),
];

/// Whether a program is one of these.
pub fn is_one_of(program: &str, programs: &str) -> bool {
    programs.split(' ').any(|name| name == program)
}

pub fn is_shell(program: &str) -> bool {
    ["sh", "bash", "zsh", "dash", "ksh", "ash", "fish"].contains(&program)
}

/// Programs that run what comes in.
pub fn runs_input(program: &str) -> bool {
    is_shell(program)
        || ["python", "python3", "python2", "node", "perl", "ruby", "php", "lua", "eval", "source", "."]
            .contains(&program)
}

/// Programs whose arguments are code, or a program with its arguments.
pub fn runs_other(program: &str) -> bool {
    runs_input(program) || is_one_of(program, WRAPPERS) || ["find", "ssh", "docker", "awk"].contains(&program)
}

/// Whether a command line fetches something.
pub fn fetches(line: &str) -> bool {
    line.split(|c: char| c.is_whitespace() || "|;&()'\"".contains(c))
        .any(|word| ["curl", "wget", "aria2c", "nc", "ncat"].contains(&base_name(word)))
}

pub fn base_name(text: &str) -> &str {
    text.trim_end_matches('/').rsplit('/').next().unwrap_or(text)
}
