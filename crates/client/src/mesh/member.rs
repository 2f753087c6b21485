//! An agent as it is kept between two sessions: whom it believes, its keys, and the prekeys that senders may still use. It
//! serialises as one secret; where that lies is its caller's affair.

use ostler_crypto::{
    certificates::Certificate,
    envelope::Identity,
    keys::{Curve, PrivateKey},
    prekeys::outdated,
};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{Aid, connections::DeliveryMode},
};
use serde::{Deserialize, Serialize};

use super::{Ambient, Gateway, OwnPrekey, Sealer};

#[derive(Serialize, Deserialize)]
pub struct Member {
    pub aid: Aid,
    pub server: String,
    /// PEM, as the key and the certificate are.
    root: String,
    key: String,
    certificate: String,
    device_id: String,
    prekeys: Vec<KeptPrekey>,
}

#[derive(Serialize, Deserialize)]
struct KeptPrekey {
    prekey_id: String,
    key: String,
    created_at: i64,
}

impl Member {
    /// Registers a name with a new key. A name without a dot is one of the server's own domain.
    pub async fn join(
        server: &str,
        root: String,
        name: &str,
        invite: Option<String>,
        ambient: Ambient,
    ) -> Result<Self, Failure> {
        let gateway = Gateway::new(server, &root, ambient)?;
        let named = match name.contains('.') {
            true => name.to_owned(),
            false => format!("{name}.{}", gateway.chain().await?.issuer().name()),
        };
        let aid: Aid = named.parse().map_err(|why| Failure::invalid("aid", format!("{named}: {why}")))?;
        let key = PrivateKey::generate(Curve::P256, &mut |bytes| (ambient.fill)(bytes));
        let identity = gateway.register(&aid, &key, invite).await?;
        Ok(Self {
            aid,
            server: server.to_owned(),
            root,
            key: key.to_pem().to_string(),
            certificate: identity.certificate().to_pem(),
            device_id: ambient.id(),
            prekeys: vec![],
        })
    }

    pub fn gateway(&self, ambient: Ambient) -> Result<Gateway, Failure> {
        Gateway::new(&self.server, &self.root, ambient)
    }

    fn identity(&self) -> Result<Identity, Failure> {
        let (key, certificate) = (PrivateKey::from_pem(&self.key), Certificate::from_pem(&self.certificate));
        let identity = key.zip(certificate).and_then(|(key, certificate)| Identity::new(key, certificate));
        identity.ok_or_else(|| {
            let message = format!("the kept key of {} does not fit its certificate", self.aid);
            Failure::rule(FailureKind::SchemaInvalid, "mesh-keys", message)
        })
    }

    /// Logs in, connects and leaves a prekey; forgets those that nobody uses any more. It is to be kept again before anything
    /// is heard: what is sealed with the new prekey opens with nothing else.
    pub async fn enter(&mut self, ambient: Ambient) -> Result<Sealer, Failure> {
        let gateway = self.gateway(ambient)?;
        let tokens = gateway.login(&self.identity()?).await?;
        if let Some(renewed) = tokens.new_certificate {
            self.certificate = renewed.to_pem();
        }
        let session = gateway.connect(&tokens.access, &self.device_id, DeliveryMode::default()).await?;
        let kept = self.prekeys.iter().filter_map(|kept| {
            let key = PrivateKey::from_pem(&kept.key)?;
            Some(OwnPrekey { prekey_id: kept.prekey_id.clone(), key, created_at: kept.created_at })
        });
        let kept = kept.collect();
        let mut sealer = Sealer::new(gateway, session, self.identity()?, &self.device_id, kept).await?;
        let OwnPrekey { prekey_id, key, created_at } = sealer.put_prekey().await?;
        self.prekeys.push(KeptPrekey { prekey_id, key: key.to_pem().to_string(), created_at });
        let times: Vec<i64> = self.prekeys.iter().map(|kept| kept.created_at).collect();
        let mut old = outdated(&times, ambient.now().as_millisecond());
        old.sort_unstable_by(|a, b| b.cmp(a));
        old.into_iter().for_each(|index| drop(self.prekeys.remove(index)));
        Ok(sealer)
    }
}
