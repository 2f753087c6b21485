//! A store with as many rows as wanted: one of each noun is made by the server, and copied by SQL while no server runs.

use std::collections::HashMap;

use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use p256::ecdsa::SigningKey;
use p256::pkcs8::EncodePublicKey;
use sqlx::{Connection as _, PgConnection};

use crate::calls::{Append, CREATE_RUN, Claimed, claimed_run};
use crate::consent::manifest;
use crate::engine::{Bench, Engine, GrowthSize, Place};
use crate::http::{Connection, field, number, request};
use crate::outcome::Outcome;
use crate::server::Server;
use crate::sessions::execute;

/// Nothing listens at the webhook, which is on this machine. The mesh lets as many names in as we like.
const SETTINGS: [(&str, &str); 3] = [
    ("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true"),
    ("OSTLER_MESH__REGISTRATIONS_PER_HOUR_MAX", "1000000"),
    ("OSTLER_MESH__REGISTRATIONS_PER_HOUR_TOTAL_MAX", "1000000"),
];
const PAGE_ITEMS: usize = 50;
/// Items of a page while a cursor in the middle is looked for.
const WALK_ITEMS: usize = 1_000;
/// One person has a limited number of relations, automations and calendar events; all others belong to other people.
const OWN_ITEMS: usize = 99;
/// Lists of which a page in the middle is read.
const LISTS: [&str; 9] = [
    "/api/v1/sessions?state=all",
    "/api/v1/runs?",
    "/agents?",
    "/h2a/relations?",
    "/api/v1/tokens?",
    "/api/v1/users?",
    "/api/v1/identities?",
    "/api/v1/automations?",
    "/api/v1/calendar-events?",
];
/// Those of them that show the items of one person.
const OWN_LISTS: [&str; 3] = ["/h2a/relations?", "/api/v1/automations?", "/api/v1/calendar-events?"];
/// The identity that is copied.
pub(crate) const AID: &str = "template.localhost.test";
pub(crate) const CALENDAR_EVENT: &str =
    r#"{"title":"Review","starts_at":"2027-03-16T09:00","event_timezone":"Europe/Berlin"}"#;
const AUTOMATION: &str = r#"{"title":"Digest","timezone":"UTC","config":{"input_template":"hi","schedule":{"type":"daily","run_at":{"hour":7,"minute":0}}}}"#;
/// Until the first copied automation is due: none of them may start while calls are measured.
const DUE_LATER_US: u64 = 10 * 24 * 3_600 * 1_000_000;

pub(crate) struct Store {
    pub server: Server,
    pub connection: Connection,
    pub size: GrowthSize,
    /// The run with the many events, and its session.
    pub claimed: Claimed,
    pub session_id: String,
    pub agent_id: String,
    pub relation_id: String,
    pub delivery_id: String,
    pub automation_id: String,
    pub event_id: String,
    /// Cursors in the middle, by list.
    middles: HashMap<&'static str, String>,
}

/// One of each noun, by id.
struct Templates {
    claimed: Claimed,
    session_id: String,
    idle_session_id: String,
    /// A run without commands.
    idle_run_id: String,
    agent_id: String,
    relation_id: String,
    delivery_id: String,
    token_id: String,
    user_id: String,
    automation_id: String,
    event_id: String,
}

/// The public key of a private key that is a small number.
pub(crate) fn public_key(private: u64) -> Outcome<String> {
    let mut scalar = [0; 32];
    scalar[24..].copy_from_slice(&private.to_be_bytes());
    let key = SigningKey::from_slice(&scalar)?;
    Ok(BASE64.encode(key.verifying_key().to_public_key_der()?.as_bytes()))
}

impl Store {
    pub(crate) async fn fill(bench: &Bench, engine: Engine, size: GrowthSize) -> Outcome<Self> {
        let place = bench.place(engine)?;
        let server = bench.serve_with(&place, &SETTINGS)?;
        let templates = Templates::make(&server).await?;
        server.stop()?;
        copy_all(&place, &templates, size).await?;
        let server = bench.serve_with(&place, &SETTINGS)?;
        let mut connection = Connection::open(&server).await?;
        let Templates { mut claimed, session_id, agent_id, relation_id, delivery_id, .. } = templates;
        let Templates { automation_id, event_id, .. } = templates;
        // The lease ended with the first server.
        let claim = format!("/api/v1/runs/{}/claim", claimed.run_id);
        let claim = request(&server, "POST", &claim, r#"{"runnerId":"bench","leaseMs":600000}"#);
        claimed.lease_epoch = number(connection.call(&claim).await?, "leaseEpoch")?;
        let mut middles = HashMap::new();
        for list in LISTS {
            let before = if OWN_LISTS.contains(&list) { OWN_ITEMS / 2 } else { size.items / 2 };
            middles.insert(list, middle(&server, &mut connection, list, before).await?);
        }
        Ok(Self {
            server,
            connection,
            size,
            claimed,
            session_id,
            agent_id,
            relation_id,
            delivery_id,
            automation_id,
            event_id,
            middles,
        })
    }

    pub(crate) fn get(&self, path: &str) -> Vec<u8> {
        request(&self.server, "GET", path, "")
    }

    /// The first page of a list, or the one in the middle.
    pub(crate) fn page(&self, list: &str, middle: bool) -> Vec<u8> {
        let cursor = self.middles.get(list).filter(|_| middle);
        let cursor = cursor.map(|cursor| format!("&cursor={cursor}")).unwrap_or_default();
        self.get(&format!("{list}&limit={PAGE_ITEMS}{cursor}"))
    }
}

/// The cursor behind so many items.
async fn middle(server: &Server, connection: &mut Connection, list: &str, before: usize) -> Outcome<String> {
    let (mut left, mut cursor) = (before, String::new());
    while left > 0 {
        let limit = left.min(WALK_ITEMS);
        let page = request(server, "GET", &format!("{list}&limit={limit}{cursor}"), "");
        let page = connection.call(&page).await?;
        cursor = format!("&cursor={}", field(page, "nextCursor").or_else(|_| field(page, "next_cursor"))?);
        left -= limit;
    }
    Ok(cursor.trim_start_matches("&cursor=").to_owned())
}

impl Templates {
    async fn make(server: &Server) -> Outcome<Self> {
        let mut connection = Connection::open(server).await?;
        let claimed = claimed_run(&mut connection, server).await?;
        let delta = ("assistant_delta", r#"{"messageId":"m","delta":"x"}"#.to_owned());
        Append::new(server, &claimed, &[delta]).send(&mut connection).await?;
        let run = connection.call(&request(server, "GET", &format!("/api/v1/runs/{}", claimed.run_id), "")).await?;
        let session_id = field(run, "sessionId")?.to_owned();
        let mut made = async |method: &str, path: &str, body: &str, id: &str| {
            Outcome::Ok(field(connection.call(&request(server, method, path, body)).await?, id)?.to_owned())
        };
        let session = r#"{"tenantId":"local","backendProfile":"scripted"}"#;
        let idle_session_id = made("POST", "/api/v1/sessions", session, "sessionId").await?;
        let idle_run_id = made("POST", "/api/v1/runs", CREATE_RUN, "runId").await?;
        let agent = format!(r#"{{"name":"bench","capability_manifest":{}}}"#, manifest(&["notes:read"]));
        let agent_id = made("POST", "/agents", &agent, "id").await?;
        let relation = format!(r#"{{"agent_id":"{agent_id}","granted_scopes":["notes:read"]}}"#);
        let relation_id = made("POST", "/h2a/relations", &relation, "id").await?;
        let webhook = format!("/agents/{agent_id}/webhook");
        made("PUT", &webhook, r#"{"url":"https://localhost:9/hook"}"#, "url").await?;
        let delivery_id = made("POST", &format!("{webhook}/test"), "", "delivery_id").await?;
        let token = r#"{"name":"template","role":"client","tenants":["local"]}"#;
        let token_id = made("POST", "/api/v1/tokens", token, "tokenId").await?;
        let user = r#"{"name":"template","timezone":"UTC"}"#;
        let user_id = made("POST", "/api/v1/users", user, "userId").await?;
        let identity = format!(r#"{{"aid":"{AID}","publicKey":"{}"}}"#, public_key(1)?);
        made("POST", "/api/v1/identities", &identity, "aid").await?;
        let automation_id = made("POST", "/api/v1/automations", AUTOMATION, "id").await?;
        let event_id = made("POST", "/api/v1/calendar-events", CALENDAR_EVENT, "id").await?;
        Ok(Self {
            claimed,
            session_id,
            idle_session_id,
            idle_run_id,
            agent_id,
            relation_id,
            delivery_id,
            token_id,
            user_id,
            automation_id,
            event_id,
        })
    }
}

async fn copy_all(place: &Place, templates: &Templates, size: GrowthSize) -> Outcome<()> {
    let earlier = ("created_at", "t.created_at - 1000 * n".to_owned());
    let id = |of: &str| numbered(place.engine, of);
    let items = size.items;
    let run_id = &templates.claimed.run_id;
    let agents = id(&templates.agent_id);
    let by = |column: &str, value: &str| format!("t.{column} = '{value}'");

    let sessions = [("session_id", id(&templates.idle_session_id)), earlier.clone()];
    copy(place, "sessions", &by("session_id", &templates.idle_session_id), &sessions, items).await?;
    let idle_session = id(&templates.idle_session_id);
    let runs = [
        ("run_id", id(&templates.idle_run_id)),
        ("session_id", idle_session.clone()),
        ("session_name", idle_session),
        earlier.clone(),
    ];
    copy(place, "runs", &by("run_id", &templates.idle_run_id), &runs, items).await?;
    let last = format!("t.run_id = '{run_id}' AND t.seq = (SELECT last_seq FROM runs WHERE run_id = '{run_id}')");
    let events = [("session_seq", "t.session_seq + n".to_owned()), ("seq", "t.seq + n".to_owned())];
    copy(place, "events", &last, &events, size.events).await?;
    let session = format!("(SELECT session_id FROM runs WHERE run_id = '{run_id}')");
    let added = size.events;
    execute(place, &format!("UPDATE sessions SET last_seq = last_seq + {added} WHERE session_id = {session}")).await?;
    execute(place, &format!("UPDATE runs SET last_seq = last_seq + {added} WHERE run_id = '{run_id}'")).await?;

    let owner = ("owner_id", id("usr_"));
    let template = by("agent_id", &templates.agent_id);
    copy(place, "agents", &template, &[("agent_id", agents.clone()), owner, earlier.clone()], items).await?;
    copy(place, "manifests", &template, &[("agent_id", agents.clone())], items).await?;
    copy(place, "webhooks", &template, &[("agent_id", agents.clone())], items).await?;
    let user = format!("CASE WHEN n <= {OWN_ITEMS} THEN t.user_id ELSE {} END", id("usr_"));
    let relation_id = ("relation_id", id(&templates.relation_id));
    let relations = [relation_id, ("agent_id", agents.clone()), ("user_id", user), earlier.clone()];
    copy(place, "relations", &by("relation_id", &templates.relation_id), &relations, items).await?;
    // They have ended, or the server would send them.
    let deliveries = [
        ("delivery_id", id(&templates.delivery_id)),
        ("agent_id", agents),
        ("status", "'dead'".to_owned()),
        ("due_at", "CAST(NULL AS BIGINT)".to_owned()),
        ("owner", "CAST(NULL AS TEXT)".to_owned()),
        earlier.clone(),
    ];
    copy(place, "webhook_deliveries", &by("delivery_id", &templates.delivery_id), &deliveries, items).await?;

    let tokens = [("token_id", id(&templates.token_id)), ("token_hash", id("hash_")), earlier.clone()];
    copy(place, "tokens", &by("token_id", &templates.token_id), &tokens, items).await?;
    let users = [("user_id", id(&templates.user_id)), ("name", id("user_")), ("subject", id("user_")), earlier.clone()];
    copy(place, "users", &by("user_id", &templates.user_id), &users, items).await?;
    let certificates = [
        ("number", "t.number + n".to_owned()),
        ("aid", "'peer-' || n || '.localhost.test'".to_owned()),
        ("serial", id("s_")),
        ("fingerprint", id("f_")),
        earlier.clone(),
    ];
    copy(place, "mesh_certificates", &by("aid", AID), &certificates, items).await?;
    let owner = format!("CASE WHEN n <= {OWN_ITEMS} THEN t.owner_id ELSE {} END", id("usr_"));
    let automations = [
        ("automation_id", id(&templates.automation_id)),
        ("owner_id", owner.clone()),
        ("next_run_at", format!("t.next_run_at + {DUE_LATER_US} + 1000000 * n")),
        earlier.clone(),
    ];
    copy(place, "automations", &by("automation_id", &templates.automation_id), &automations, items).await?;
    let calendar = [("event_id", id(&templates.event_id)), ("owner_id", owner), earlier];
    copy(place, "calendar_events", &by("event_id", &templates.event_id), &calendar, items).await?;
    if place.engine == Engine::Postgres {
        // As its own daemon would within a minute.
        execute(place, "ANALYZE").await?;
    }
    Ok(())
}

/// An id with the prefix of this one, made of `n`.
fn numbered(engine: Engine, id: &str) -> String {
    let prefix = id.split_once('_').map_or(id, |(prefix, _)| prefix);
    match engine {
        Engine::Sqlite => format!("printf('{prefix}_%032x', n)"),
        Engine::Postgres => format!("'{prefix}_' || lpad(to_hex(n), 32, '0')"),
    }
}

/// Copies the row that the filter finds, as `t`, with some of its columns replaced. `n` counts from one.
async fn copy(place: &Place, table: &str, filter: &str, replaced: &[(&str, String)], count: usize) -> Outcome<()> {
    let columns = columns(place, table).await?;
    let value = |column: &String| {
        let other = replaced.iter().find(|(name, _)| name == column);
        other.map_or_else(|| format!("t.{column}"), |(_, value)| value.clone())
    };
    let values: Vec<_> = columns.iter().map(value).collect();
    let sql = format!(
        "INSERT INTO {table} ({}) WITH RECURSIVE series(n) AS \
         (SELECT CAST(1 AS BIGINT) UNION ALL SELECT n + 1 FROM series WHERE n < {count}) \
         SELECT {} FROM {table} AS t CROSS JOIN series WHERE {filter}",
        columns.join(", "),
        values.join(", ")
    );
    execute(place, &sql).await.map_err(|error| format!("{table}: {error}").into())
}

async fn columns(place: &Place, table: &str) -> Outcome<Vec<String>> {
    match &place.database_url {
        Some(url) => {
            let mut connection = PgConnection::connect(url).await?;
            let sql = "SELECT column_name::text FROM information_schema.columns \
                       WHERE table_schema = 'public' AND table_name = $1 ORDER BY ordinal_position";
            let found = sqlx::query_scalar(sql).bind(table).fetch_all(&mut connection).await?;
            connection.close().await?;
            Ok(found)
        }
        None => {
            let connection = rusqlite::Connection::open(place.data_dir.join("ostler.db"))?;
            let mut statement = connection.prepare("SELECT name FROM pragma_table_info(?1) ORDER BY cid")?;
            let found = statement.query_map([table], |row| row.get::<_, String>(0))?.collect::<Result<Vec<_>, _>>()?;
            Ok(found)
        }
    }
}
