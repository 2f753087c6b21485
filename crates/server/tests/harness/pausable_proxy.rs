//! A proxy between the server and its Postgres. While it is paused, connections stay open, new ones are accepted, and no
//! byte gets through.

use secrecy::ExposeSecret;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp},
    sync::watch,
};

use ostler_server::Config;

pub(crate) struct PausableProxy {
    is_open: watch::Sender<bool>,
}

impl PausableProxy {
    /// Has the server of this configuration reach its Postgres through a proxy.
    pub(crate) async fn between(config: &mut Config) -> Self {
        let url = config.store.database_url.as_ref().expect("the store is Postgres").expose_secret().to_owned();
        let (before, rest) = url.split_once('@').unwrap();
        let (host, database) = rest.split_once('/').unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        config.store.database_url = Some(format!("{before}@{address}/{database}").into());
        let (is_open, watched) = watch::channel(true);
        let host = host.to_owned();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (host, watched) = (host.clone(), watched.clone());
                tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(&host).await else { return };
                    let ((from_client, to_client), (from_server, to_server)) =
                        (client.into_split(), server.into_split());
                    tokio::join!(pass(from_client, to_server, watched.clone()), pass(from_server, to_client, watched));
                });
            }
        });
        Self { is_open }
    }

    pub(crate) fn pause(&self) {
        self.is_open.send_replace(false);
    }

    pub(crate) fn resume(&self) {
        self.is_open.send_replace(true);
    }
}

async fn pass(mut from: tcp::OwnedReadHalf, mut to: tcp::OwnedWriteHalf, mut is_open: watch::Receiver<bool>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(read) = from.read(&mut buffer).await {
        if read == 0 || is_open.wait_for(|is_open| *is_open).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
