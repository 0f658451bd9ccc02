//! Acts on sockets.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream};
use std::time::Duration;

use crate::{Act, Found, arg, done, number, sys};

pub const ACTS: &[(&str, Act)] = &[
    ("unix", |a| UnixStream::connect(arg(a, 0)?).map(done)),
    ("unix-datagram", |a| UnixDatagram::unbound()?.send_to(b"x", arg(a, 0)?).map(done)),
    ("unix-listen", |a| UnixListener::bind(arg(a, 0)?).map(done)),
    ("abstract", |a| UnixStream::connect_addr(&SocketAddr::from_abstract_name(arg(a, 0)?)?).map(done)),
    ("abstract-datagram", |a| {
        UnixDatagram::unbound()?.send_to_addr(b"x", &SocketAddr::from_abstract_name(arg(a, 0)?)?).map(done)
    }),
    ("abstract-own", |_| {
        let name = SocketAddr::from_abstract_name("ringfence-probe-own")?;
        let _listener = UnixListener::bind_addr(&name)?;
        UnixStream::connect_addr(&name).map(done)
    }),
    ("serve", |a| {
        let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(arg(a, 0)?)?)?;
        let _tcp = TcpListener::bind(arg(a, 1)?)?;
        let _path = UnixListener::bind(arg(a, 2)?)?;
        std::thread::sleep(Duration::from_secs(1000));
        Ok(String::new())
    }),
    ("tcp", |a| {
        let address = arg(a, 0)?.parse().map_err(io::Error::other)?;
        TcpStream::connect_timeout(&address, Duration::from_secs(5)).map(done)
    }),
    ("udp", |a| {
        let socket = UdpSocket::bind(if arg(a, 0)?.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" })?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.connect(arg(a, 0)?)?;
        socket.send(b"x")?;
        socket.recv(&mut [0; 8]).map(done)
    }),
    ("loopback", |_| loopback("127.0.0.1:0")),
    ("loopback6", |_| loopback("[::1]:0")),
    ("interfaces", |_| interfaces()),
    ("socket", |a| {
        sys::call(libc::SYS_socket, &[number(a, 0)? as u64, number(a, 1)? as u64, number(a, 2)? as u64]).map(done)
    }),
];

fn loopback(address: &str) -> Found {
    let listener = TcpListener::bind(address)?;
    let mut client = TcpStream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    server.write_all(b"x")?;
    client.read_exact(&mut [0]).map(done)
}

fn interfaces() -> Found {
    let text = std::fs::read_to_string("/proc/net/dev")?;
    let mut names: Vec<&str> = text.lines().skip(2).filter_map(|l| l.split(':').next()).map(str::trim).collect();
    names.sort_unstable();
    Ok(names.join(" "))
}
