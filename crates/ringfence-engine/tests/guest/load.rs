//! Much at once: outputs stay apart, a slow reader stops nobody else, memory stays bounded.

use std::time::{Duration, Instant};

use ringfence_guest::frame::{Channel, WINDOW};
use ringfence_guest::message::{Reply, Request, Step, Write, WriteMode};

use crate::{Host, Place, everywhere};

everywhere! {
    outputs_stay_apart
    too_many_streams_are_refused
    a_slow_reader_stops_its_writer_alone
    what_is_killed_ends_though_nothing_is_taken
    a_slow_command_stops_its_input_alone
    a_flood_passes
    a_connection_goes_both_ways
}

fn outputs_stay_apart(place: Place) {
    const COMMANDS: usize = 200;
    let mut host = Host::new(place);
    // Each writes lines of its own to both outputs, more than a window of them.
    let script = |i: usize| {
        format!(
            "i=0; while [ $i -lt 40 ]; do echo out-{i}-$i; echo err-{i}-$i >&2; i=$((i+1)); done; seq -f out-{i}-%g 40 4000; exit {}",
            i % 7
        )
    };
    let streams: Vec<u32> = (0..COMMANDS).map(|i| host.start(&["sh", "-c", &script(i)])).collect();
    for (i, stream) in streams.into_iter().enumerate() {
        let ended = host.end(stream);
        let lines = |name: &str, end: usize| (0..end).map(|n| format!("{name}-{i}-{n}\n")).collect::<String>();
        assert_eq!(ended.code, i as i32 % 7);
        assert!(ended.stdout == lines("out", 4001), "output of {i}");
        assert!(ended.stderr == lines("err", 40), "errors of {i}");
    }
    host.ping();
}

fn too_many_streams_are_refused(place: Place) {
    let mut host = Host::new(place);
    // A file that is never completed stays open.
    let write = |host: &Host, i: usize| {
        let path = host.workdir.join(i.to_string()).into_os_string().into_encoded_bytes();
        Request::Write(Write { path, mode: 0o600, parents: false, how: WriteMode::Create, piped: false })
    };
    let open: Vec<u32> = (0..1024)
        .map(|i| {
            let request = write(&host, i);
            host.open(&request)
        })
        .collect();
    let one_more = host.open(&Request::Ping);
    assert_eq!(host.reply(one_more), Reply::Failed { step: Step::Refuse, errno: libc::EAGAIN });
    for stream in open {
        host.end_input(stream);
        assert_eq!(host.reply(stream), Reply::Done { bytes: 0 });
    }
    host.ping();
}

fn a_slow_reader_stops_its_writer_alone(place: Place) {
    let mut host = Host::new(place);
    let slow = host.start(&["sh", "-c", "yes; echo never"]);
    host.stream(slow).stingy = true;
    while host.stream(slow).out.len() < WINDOW as usize {
        host.step();
    }
    // Its neighbours go on, with as much as they like.
    for _ in 0..5 {
        assert_eq!(host.sh("seq 100000").stdout.len(), 588_895);
    }
    assert_eq!(host.stream(slow).out.len(), WINDOW as usize, "not a byte more than was granted");
    // A little credit lets a little through.
    host.grant(slow, Channel::Out, 1000);
    while host.stream(slow).out.len() < WINDOW as usize + 1000 {
        host.step();
    }
    host.ping();
    assert_eq!(host.stream(slow).out.len(), WINDOW as usize + 1000);
    // Without credit its end waits for the reader, who may as well give up.
    host.signal(slow, libc::SIGKILL, false);
    host.ping();
    host.grant(slow, Channel::Out, u32::MAX / 2);
    assert_eq!(host.exited(slow).unwrap().status, libc::SIGKILL);
}

fn what_is_killed_ends_though_nothing_is_taken(place: Place) {
    let mut host = Host::new(place);
    let neighbour = host.start(&["sh", "-c", "sleep 3; echo there"]);
    for script in ["yes", "yes & sleep 100", "yes >&2", "trap '' TERM; yes; yes; yes"] {
        let slow = host.start(&["sh", "-c", script]);
        host.stream(slow).stingy = true;
        while host.stream(slow).out.len() + host.stream(slow).err.len() < WINDOW as usize {
            host.step();
        }
        host.signal(slow, libc::SIGTERM, true);
        host.ping();
        // Not before: its reader may only be slow.
        assert!(host.stream(slow).replies.iter().all(|r| matches!(r, Reply::Started { .. })), "{script}");
        host.signal(slow, libc::SIGKILL, true);
        host.exited(slow).unwrap();
    }
    assert_eq!(host.end(neighbour).stdout, "there\n");
}

fn a_slow_command_stops_its_input_alone(place: Place) {
    let mut host = Host::new(place);
    let mut exec = host.command(&["sh", "-c", "read line; sleep 0.5; cat | wc -c"]);
    exec.stdin = true;
    let slow = host.open(&Request::Exec(exec));
    host.send(slow, b"line\n");
    host.send(slow, &vec![b'x'; WINDOW as usize - 5]);
    // What is not read is not granted again, and others do not notice.
    assert_eq!(host.sh("echo there").stdout, "there\n");
    host.send(slow, &vec![b'x'; 4 * WINDOW as usize]);
    host.end_input(slow);
    assert_eq!(host.end(slow).stdout, format!("{}\n", 5 * WINDOW - 5));
}

fn a_flood_passes(place: Place) {
    const BYTES: usize = 1 << 30;
    let mut host = Host::new(place);
    let before = resident(host.pid());
    let stream = host.start(&["head", "-c", &BYTES.to_string(), "/dev/zero"]);
    let started = Instant::now();
    let mut got = 0;
    while host.stream(stream).replies.iter().all(|r| matches!(r, Reply::Started { .. })) {
        host.step();
        let out = &mut host.stream(stream).out;
        got += out.len();
        out.clear();
    }
    assert_eq!(got, BYTES);
    let grown = resident(host.pid()).saturating_sub(before);
    assert!(grown < 4 << 20, "{grown} bytes of memory for a flood");
    println!("{place:?}: 1 GiB in {:?}, {grown} bytes more", started.elapsed());
}

/// Memory of a process.
fn resident(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

fn a_connection_goes_both_ways(place: Place) {
    let mut host = Host::new(place);
    let server = "import socket,sys
s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen()
print(s.getsockname()[1], flush=True)
c, _ = s.accept()
n = 0
while True:
    b = c.recv(65536)
    if not b: break
    n += len(b); c.sendall(b)
c.sendall(b'end %d' % n)
c.close()
";
    let stream = host.start(&["python3", "-c", server]);
    host.until(stream, "\n");
    let port: u16 = String::from_utf8(host.stream(stream).out.clone()).unwrap().trim().parse().unwrap();
    let connection = host.open(&Request::Connect { port });
    assert_eq!(host.reply(connection), Reply::Started { pid: 0 });
    let bytes: Vec<u8> = (0..2_000_000u32).map(|i| (i >> 2) as u8).collect();
    host.send(connection, &bytes);
    host.end_input(connection);
    let sent = bytes.len() as u64;
    assert_eq!(host.reply(connection), Reply::Done { bytes: sent + 11 });
    let out = std::mem::take(&mut host.stream(connection).out);
    assert!(out[..bytes.len()] == bytes && out[bytes.len()..] == *b"end 2000000");
    assert_eq!(host.end(stream).code, 0);
    // Nobody listens there any more.
    let refused = host.open(&Request::Connect { port });
    assert_eq!(host.reply(refused), Reply::Failed { step: Step::Connect, errno: libc::ECONNREFUSED });
    std::thread::sleep(Duration::from_millis(1));
}
