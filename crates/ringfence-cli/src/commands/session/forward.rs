//! `ringfence session forward`: a local port that leads to one in a session.

use std::process::ExitCode;
use std::sync::Arc;

use ringfence::session::Session;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::failure::{Failure, Kind};
use crate::output;

const MOST_CONNECTIONS: usize = 128;

/// Until it is interrupted, or the session ends.
pub fn forward(session: &str, (local, inside): (u16, u16)) -> Result<ExitCode, Failure> {
    super::within(async |sessions| {
        let session = super::open(&sessions, session).await?;
        let failed =
            |error: std::io::Error| Failure::new(Kind::Session, format!("cannot listen at port {local}: {error}"));
        let listener = TcpListener::bind(("127.0.0.1", local)).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // A port that is open is use, whether anybody is connected or not.
        let _held = session.hold()?;
        output::data(&format!("{address}\n"))?;
        // Anybody on this host can connect: the session must be left for commands. Who comes then waits to be accepted.
        let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        let accept = async || (room.clone().acquire_owned().await, listener.accept().await);
        loop {
            tokio::select! {
                (place, accepted) = accept() => match accepted {
                    Ok((socket, _)) => {
                        let session = session.clone();
                        tokio::spawn(async move {
                            carry(session, socket, inside).await;
                            drop(place);
                        });
                    }
                    // One connection less, not the end: out of descriptors, or it was gone again.
                    Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
                },
                () = session.closed() => {
                    return Err(Failure::new(Kind::Session, format!("session {} has ended", session.id())));
                }
            }
        }
    })
}

async fn carry(session: Session, mut socket: TcpStream, port: u16) {
    match session.connect(port).await {
        Ok(mut inside) => {
            // Either side may break off; the other one sees it.
            let _ = tokio::io::copy_bidirectional(&mut socket, &mut inside).await;
        }
        Err(error) => output::say(&format!("ringfence: {error}")),
    }
}
