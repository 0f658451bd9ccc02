//! A client that asks and does not read is not heard until it has read: what waits for it takes bounded memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::Notify;

/// So many messages may wait to be written.
const MOST_UNSENT: usize = 16;
/// So many requests may be under way. Calls of tools have a bound of their own below it, so that one which waits for its
/// command keeps no cancellation from being heard.
const MOST_RUNNING: usize = 128;

/// What is under way for the client.
#[derive(Debug, Default)]
pub struct Load {
    unsent: AtomicUsize,
    running: AtomicUsize,
    less: Notify,
}

/// One more of something, until it is dropped.
#[derive(Debug)]
pub struct Counted {
    load: Arc<Load>,
    of: fn(&Load) -> &AtomicUsize,
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.of)(&self.load).fetch_sub(1, Ordering::Relaxed);
        self.load.less.notify_one();
    }
}

impl Load {
    fn count(self: &Arc<Load>, of: fn(&Load) -> &AtomicUsize) -> Counted {
        of(self).fetch_add(1, Ordering::Relaxed);
        Counted { load: self.clone(), of }
    }

    /// A request is being answered.
    pub fn running(self: &Arc<Load>) -> Counted {
        self.count(|load| &load.running)
    }

    /// Returns when there is room for one more request.
    async fn room(&self) {
        loop {
            let less = self.less.notified();
            let (unsent, running) = (self.unsent.load(Ordering::Relaxed), self.running.load(Ordering::Relaxed));
            if unsent < MOST_UNSENT && running < MOST_RUNNING {
                return;
            }
            less.await;
        }
    }
}

/// A transport that stops to read while too much is under way.
#[derive(Debug)]
pub struct Bounded<T> {
    pub inner: T,
    pub load: Arc<Load>,
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for Bounded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send + 'static {
        let counted = self.load.count(|load| &load.unsent);
        let send = self.inner.send(item);
        async move {
            let sent = send.await;
            drop(counted);
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        self.load.room().await;
        // What was received before gets its turn: else all that a client sends is taken before any of it is counted. Before the
        // next message and not after it, since this can be given up at any wait.
        tokio::task::yield_now().await;
        self.inner.receive().await
    }

    async fn close(&mut self) -> Result<(), Self::Error> {
        self.inner.close().await
    }
}
