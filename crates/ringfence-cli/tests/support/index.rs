//! An index of Python's packages and a registry of npm's, with packages that mean no good.
#![allow(dead_code, reason = "each test file uses some of it")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{self, Place};

/// What is kept or left of packages, but for the locks of sets.
pub fn kept(place: &Place) -> Vec<String> {
    let store = place.home.join(".local/state/ringfence/requirements");
    let names = if store.exists() { support::names(&store) } else { Vec::new() };
    let is_lock = |name: &String| name.strip_suffix(".lock").is_some_and(|id| names.iter().any(|name| name == id));
    names.iter().filter(|name| !is_lock(name)).cloned().collect()
}

/// Makes packages, then serves them: a directory listing is an index that pip reads. Prints the port, then every path that
/// was asked for.
const SERVER: &str = r##"
import http.server, io, json, os, sys, tarfile, time, zipfile
os.chdir(sys.argv[1])

def wheel(name, version, files, needs=""):
    os.makedirs(f"simple/{name}", exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
             f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n", f"{info}/RECORD": ""}
    with zipfile.ZipFile(f"simple/{name}/{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = (0o104755 if path.endswith(".set") else 0o100644) << 16
            archive.writestr(entry, text)

def tarball(path, files):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))

wheel("greeting", "1.0", {"greeting.py": "def hello(): return 'hello 1'", "evil.pth": "import os; os.environ['PWNED'] = '1'", "x.set": "#!/bin/sh"})
wheel("greeting", "2.0", {"greeting.py": "def hello(): return 'hello 2'"})
wheel("large", "1.0", {"large.bin": "x" * (24 << 20)})
wheel("many", "1.0", {f"many/{n}.py": "" for n in range(500)})
wheel("escape", "1.0", {"../../../escaped.py": "x = 1"})
setup = "open('/tmp/ran', 'w'); import os; os.system('touch ran'); raise SystemExit('setup.py ran')"
tarball("simple/source/source-1.0.tar.gz", {"source-1.0/setup.py": setup, "source-1.0/PKG-INFO": "Metadata-Version: 1.0\nName: source\nVersion: 1.0\n"})
package = {"name": "greeting", "version": "1.0.0", "main": "main.js", "scripts": {"preinstall": "touch pwned", "postinstall": "touch pwned"}}
tarball("greeting/-/greeting-1.0.0.tgz", {"package/package.json": json.dumps(package), "package/main.js": "exports.hello = () => 'hello node';"})
outer = {"name": "outer", "version": "1.0.0", "main": "main.js", "dependencies": {"greeting": "^9.0.0"}}
tarball("outer/-/outer-1.0.0.tgz", {"package/package.json": json.dumps(outer), "package/main.js": "exports.hello = () => require('greeting').hello() + ' from outer';"})

class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args): print(self.path, flush=True)
    def do_GET(self):
        if "/never" in self.path:
            self.log_message()
            time.sleep(600)
        super().do_GET()

server = http.server.ThreadingHTTPServer((sys.argv[2], 0), Handler)
if len(sys.argv) > 3:
    import ssl
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
leads = f"http://{sys.argv[2]}:{server.server_address[1]}/elsewhere"
wheel("astray", "1.0", {"astray.py": ""}, f"Requires-Dist: leads @ {leads}/leads-1.0.tar.gz\n")
wheel("detour", "1.0", {"astray.py": ""}, f"Requires-Dist: leads @ {leads}/leads-1.0-py3-none-any.whl\n")
wheel("needy", "1.0", {"needy.py": "import greeting"}, "Requires-Dist: greeting\n")
tarball("elsewhere/leads-1.0.tar.gz", {"leads-1.0/setup.py": setup, "leads-1.0/PKG-INFO": "Metadata-Version: 1.0\nName: leads\nVersion: 1.0\n"})
print(server.server_address[1], flush=True)
server.serve_forever()
"##;

/// Makes a certificate for an address, and its key: a file with both.
fn certify(dir: &std::path::Path, address: &str) -> std::path::PathBuf {
    let pem = dir.join("both.pem");
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=index \
        -addext \"subjectAltName=IP:$2\" -keyout \"$1.key\" -out \"$1.crt\" && cat \"$1.key\" \"$1.crt\" >\"$1\"";
    let made = Command::new("sh").args(["-c", make, "sh"]).arg(&pem).arg(address).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    pem
}

pub struct Index {
    process: Child,
    pub address: String,
    pub port: u16,
    log: Arc<Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
    scheme: &'static str,
}

impl Index {
    /// On loopback.
    pub fn new() -> Index {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Command::new("/usr/bin/python3");
        server.args(["-c", SERVER]).arg(dir.path()).arg("127.0.0.1");
        let mut process = server.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Index::serving(process, lines, "127.0.0.1".to_owned(), dir)
    }

    /// On loopback, with a certificate that nobody believes but who has `authority` for one.
    pub fn encrypted() -> Index {
        let dir = tempfile::tempdir().unwrap();
        let mut server = Command::new("/usr/bin/python3");
        server.args(["-c", SERVER]).arg(dir.path()).arg("127.0.0.1").arg(certify(dir.path(), "127.0.0.1"));
        let mut process = server.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut index = Index::serving(process, lines, "127.0.0.1".to_owned(), dir);
        index.scheme = "https";
        index
    }

    /// The certificate of one that is encrypted.
    pub fn authority(&self) -> std::path::PathBuf {
        self.dir.path().join("both.pem.crt")
    }

    /// On a machine next to this one, as a container sees it: in a network of its own, which goes with the server. For root.
    pub fn next_door() -> Index {
        Index::beyond(false)
    }

    /// The same, encrypted.
    pub fn next_door_encrypted() -> Index {
        let mut index = Index::beyond(true);
        index.scheme = "https";
        index
    }

    fn beyond(encrypted: bool) -> Index {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id() * 4 + NEXT.fetch_add(1, Ordering::Relaxed);
        let (net, link) = (format!("10.213.{}", number % 250), format!("rf{}", number % 1_000_000));
        let (dir, address) = (tempfile::tempdir().unwrap(), format!("{net}.2"));
        let wait = "echo there; read go; exec /usr/bin/python3 -c \"$@\"";
        let mut server = Command::new("unshare");
        server.args(["--net", "--", "sh", "-c", wait, "sh", SERVER]).arg(dir.path()).arg(&address);
        if encrypted {
            server.arg(certify(dir.path(), &address));
        }
        let mut process = server.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "there");
        let lay = "set -e
            ip link add $1 type veth peer name inside netns $2
            ip addr add $3.1/24 dev $1; ip link set $1 up
            nsenter -t $2 -n sh -ec \"ip addr add $3.2/24 dev inside; ip link set inside up; ip link set lo up\"";
        let pid = process.id().to_string();
        let laid = Command::new("sh").args(["-c", lay, "sh", &link, &pid, &net]).output().unwrap();
        assert!(laid.status.success(), "{}", String::from_utf8_lossy(&laid.stderr));
        process.stdin.take().unwrap().write_all(b"go\n").unwrap();
        Index::serving(process, lines, address, dir)
    }

    /// Waits until something that ends so was asked for so often.
    pub fn asked(&self, end: &str, times: usize) {
        let until = Instant::now() + Duration::from_secs(60);
        while self.fetched(end) < times {
            assert!(Instant::now() < until, "nobody asked for {end}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn serving(
        process: Child,
        mut lines: Lines<BufReader<ChildStdout>>,
        address: String,
        dir: tempfile::TempDir,
    ) -> Index {
        let port = lines.next().unwrap().unwrap().parse().unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = log.clone();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| written.lock().unwrap().push(line)));
        Index { process, address, port, log, dir, scheme: "http" }
    }

    pub fn python(&self) -> String {
        format!("{}/simple", self.node())
    }

    pub fn node(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.address, self.port)
    }

    pub fn fetched(&self, end: &str) -> usize {
        self.log.lock().unwrap().iter().filter(|path| path.ends_with(end)).count()
    }

    /// It answers nobody any more.
    pub fn close(&mut self) {
        self.process.kill().unwrap();
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
