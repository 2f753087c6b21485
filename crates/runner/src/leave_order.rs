//! The order to leave: the runner was stopped from outside and hands its run back. A turn that is in progress is not dropped: its
//! backend ends first, and the turn stays unfinished for the next runner.

use tokio::sync::watch;

/// Gives the order.
pub(crate) struct LeaveSender(watch::Sender<bool>);

/// Where the order is awaited.
pub(crate) struct LeaveOrder(watch::Receiver<bool>);

pub(crate) fn channel() -> (LeaveSender, LeaveOrder) {
    let (sender, receiver) = watch::channel(false);
    (LeaveSender(sender), LeaveOrder(receiver))
}

impl LeaveSender {
    pub(crate) fn send(&self) {
        self.0.send_replace(true);
    }
}

impl LeaveOrder {
    pub(crate) fn is_given(&self) -> bool {
        *self.0.borrow()
    }

    /// Resolves when the order is given. Cancel safe.
    pub(crate) async fn wait(&self) {
        let mut receiver = self.0.clone();
        if receiver.wait_for(|is_given| *is_given).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
