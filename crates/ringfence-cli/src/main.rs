use ringfence::policy::{limits::*, policy::*, rules::*, *};
use std::collections::*;
fn main() {
    let facts = ringfence::facts::gather().unwrap();
    let workdir = std::env::current_dir().unwrap();
    let o = Origin { layer: LayerKind::Profile, place: "test".into() };
    let r = |access, p: std::path::PathBuf, missing| FileRule {
        access,
        pattern: Pattern::Exact(p),
        missing,
        origin: o.clone(),
    };
    let policy = Policy {
        profile: "agent".into(),
        workdir: workdir.clone(),
        workdir_at: None,
        root: Root::Host,
        rules: vec![
            r(Access::Rw, workdir.clone(), Missing::Ignore),
            r(Access::Ro, facts.home.clone(), Missing::Ignore),
            r(Access::Exclude, facts.home.join(".ssh"), Missing::Ignore),
            r(Access::Ro, workdir.join(".git/hooks"), Missing::Protect(Kind::Dir)),
            r(Access::Ro, workdir.join(".mcp.json"), Missing::Protect(Kind::File)),
        ],
        network: if std::env::var("NET").is_ok() { Network::Open } else { Network::None },
        docker: false,
        nesting: false,
        env: EnvPolicy { inherit: true, ..Default::default() },
        user: User::Caller,
        limits: Limits {
            memory: std::env::var("MEM").ok().map(|m| m.parse().unwrap()),
            cpus: None,
            pids: std::env::var("PIDS").ok().map(|m| m.parse().unwrap()),
            files: None,
            timeout: std::env::var("TMO").ok().map(|m| std::time::Duration::from_secs(m.parse().unwrap())),
            timeout_ceiling: None,
            cpu_time: None,
            tmp_size: 1 << 30,
            tmp_inodes: 1 << 20,
            output: 1 << 20,
        },
        commands: BTreeMap::new(),
        allow_syscalls: vec![],
        optional: BTreeSet::new(),
        strict: false,
        trace_denials: std::env::var("TRACE").is_ok(),
    };
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let plan = plan::plan(&policy, &facts, &args).unwrap();
    if std::env::var("DRY").is_ok() {
        print!("{}", ringfence::engines::describe(ringfence::Engine::Native, &plan, &facts).unwrap());
        return;
    }
    let fds = [0, 1, 2].map(|i| {
        rustix::io::fcntl_dupfd_cloexec(
            match i {
                0 => rustix::stdio::stdin(),
                1 => rustix::stdio::stdout(),
                _ => rustix::stdio::stderr(),
            },
            3,
        )
        .unwrap()
    });
    let running =
        ringfence::engines::start(ringfence::Engine::Native, &plan, &facts, ringfence::StdioSpec::Files(fds)).unwrap();
    struct N;
    impl ringfence::Companion for N {
        fn wants(&self) -> Vec<(std::os::fd::BorrowedFd<'_>, rustix::event::PollFlags)> {
            vec![]
        }
        fn ready(
            &mut self,
            _: usize,
            _: rustix::event::PollFlags,
            _: &ringfence::Running,
        ) -> Result<(), rustix::io::Errno> {
            Ok(())
        }
        fn terminal(&mut self, _: std::os::fd::OwnedFd) {}
        fn stopped(&mut self, _: i32, _: &ringfence::Running) -> Result<(), rustix::io::Errno> {
            Ok(())
        }
    }
    let o = ringfence::supervise(running, &policy, &facts, &mut N);
    eprintln!("{o:?}");
}
