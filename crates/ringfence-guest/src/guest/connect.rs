//! Connections to a port of the box's own loopback.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use ringfence_guest::frame::{Channel, Kind, MAX_DATA};
use ringfence_guest::message::{Reply, Step};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::exec::Failure;
use super::link::Taken;
use super::streams::{Ending, Sink, Source};
use super::{Context, Fault, Flow, Part, Task, token};

#[derive(Debug)]
pub struct Connect {
    stream: u32,
    port: u16,
    state: State,
    moved: u64,
}

#[derive(Debug)]
enum State {
    /// `true`: by IPv4; IPv6 is tried after it.
    Connecting(OwnedFd, bool),
    Open {
        source: Option<Source>,
        sink: Sink,
    },
}

impl Connect {
    pub fn open(key: u64, stream: u32, port: u16, cx: &mut Context) -> Result<Connect, Failure> {
        let at = |errno| (Step::Connect, errno);
        let socket = begin(port, true).or_else(|_| begin(port, false)).map_err(at)?;
        watch(key, &socket, cx).map_err(at)?;
        Ok(Connect { stream, port, state: State::Connecting(socket, true), moved: 0 })
    }

    /// The connection stands, or not.
    fn connected(&mut self, key: u64, cx: &mut Context) -> Result<Flow, Fault> {
        let State::Connecting(socket, first) = &self.state else { return Ok(Flow::Goes) };
        let outcome = rustix::net::sockopt::socket_error(socket).and_then(|error| error);
        epoll::delete(&cx.epoll, socket)?;
        let result = match outcome {
            Err(_) if *first => begin(self.port, false).and_then(|socket| {
                watch(key, &socket, cx)?;
                Ok(Some(State::Connecting(socket, false)))
            }),
            Err(errno) => Err(errno),
            Ok(()) => rustix::io::fcntl_dupfd_cloexec(socket, 3).and_then(|copy| {
                let sink = Sink::new(copy, self.stream, Ending::Shutdown);
                let copy = rustix::io::fcntl_dupfd_cloexec(socket, 3)?;
                let mut source = Source::new(copy, self.stream, Channel::Out);
                source.arm(key, Part::Out, &cx.epoll)?;
                cx.link.message(self.stream, &Reply::Started { pid: 0 });
                Ok(Some(State::Open { source: Some(source), sink }))
            }),
        };
        match result {
            Ok(Some(state)) => {
                self.state = state;
                Ok(Flow::Goes)
            }
            Ok(None) => Ok(Flow::Goes),
            Err(errno) => {
                cx.link.failed(self.stream, Step::Connect, errno);
                Ok(Flow::Ended)
            }
        }
    }

    fn done(&self, cx: &mut Context) -> Flow {
        match &self.state {
            State::Open { source: None, sink } if sink.is_done() => {
                cx.link.message(self.stream, &Reply::Done { bytes: self.moved });
                Flow::Ended
            }
            _ => Flow::Goes,
        }
    }
}

fn begin(port: u16, v4: bool) -> Result<OwnedFd, Errno> {
    let (family, address): (_, SocketAddr) = match v4 {
        true => (AddressFamily::INET, (Ipv4Addr::LOCALHOST, port).into()),
        false => (AddressFamily::INET6, (Ipv6Addr::LOCALHOST, port).into()),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(e) => Err(e),
    }
}

fn watch(key: u64, socket: &OwnedFd, cx: &Context) -> Result<(), Errno> {
    epoll::add(&cx.epoll, socket, EventData::new_u64(token(key, Part::In)), EventFlags::OUT)
}

impl Task for Connect {
    fn ready(&mut self, key: u64, part: Part, cx: &mut Context) -> Result<Flow, Fault> {
        match (&mut self.state, part) {
            (State::Connecting(..), _) => return self.connected(key, cx),
            (State::Open { sink, .. }, Part::In) => sink.flush(key, cx)?,
            (State::Open { source: slot, .. }, _) => {
                if let Some(source) = slot {
                    match source.pump(&mut cx.link, MAX_DATA) {
                        Ok(Taken::Bytes(n)) => {
                            self.moved += n as u64;
                            source.arm(key, Part::Out, &cx.epoll)?;
                        }
                        Ok(Taken::Nothing) => {}
                        Ok(Taken::End) => {
                            source.disarm(&cx.epoll);
                            *slot = None;
                            cx.link.frame(self.stream, Kind::Eof(Channel::Out), &[]);
                        }
                        Err(errno) => {
                            cx.link.failed(self.stream, Step::Connect, errno);
                            return Ok(Flow::Ended);
                        }
                    }
                }
            }
        }
        Ok(self.done(cx))
    }

    fn grant(&mut self, key: u64, channel: Channel, bytes: u32, cx: &mut Context) -> Result<Flow, Fault> {
        if let (State::Open { source: Some(source), .. }, Channel::Out) = (&mut self.state, channel) {
            source.grant(bytes)?;
            source.arm(key, Part::Out, &cx.epoll)?;
        }
        Ok(Flow::Goes)
    }

    fn data(&mut self, key: u64, bytes: Option<&[u8]>, cx: &mut Context) -> Result<Flow, Fault> {
        // Data before `Started` has nowhere to go.
        let State::Open { sink, .. } = &mut self.state else { return Err(Fault::Credit) };
        match bytes {
            Some(bytes) => sink.push(bytes)?,
            None => sink.end(),
        }
        sink.flush(key, cx)?;
        Ok(self.done(cx))
    }

    fn close(&mut self, cx: &mut Context) {
        match &mut self.state {
            State::Connecting(..) => {}
            State::Open { source, sink } => {
                if let Some(source) = source {
                    source.disarm(&cx.epoll);
                }
                sink.close(&cx.epoll);
            }
        }
    }
}
