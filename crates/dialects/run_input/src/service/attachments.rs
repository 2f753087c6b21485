//! Attachments: upload, serve, sign, use in a message, and delete those that no message uses.

use bytes::Bytes;
use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Rule, Timestamp,
    ids::SessionId,
    kernel::sessions::Session,
    kernel::{commands::Command, conversation::HistoryAttachment},
    retention::RetentionNoun,
    run_input::history::pictures,
    run_input::{
        attachments::{
            ATTACHMENT_BYTES_MAX, ATTACHMENTS_PER_USER_MAX, Attachment, ImageType, ObjectPath, Proof, SignUrl,
            SignedUrl,
        },
        history::Picture,
    },
};
use ostler_store::{self as store, run_input::attachments::Quota};
use serde_json::{Value, json};

use super::threads;
use crate::state::RunInputState;
use ostler_server::{
    app::App,
    auth::Principal,
    dialect::{Ownership, RemovedItems, RetentionScope, RetentionStep},
    net::permits::Permit,
};

/// Files that one sweep deletes; the next one deletes the rest.
const SWEEP_MAX: u32 = 500;
/// The longest URL of a picture on a trusted host.
const TRUSTED_URL_BYTES_MAX: usize = 2_048;
/// The type of a picture whose client sent none.
const ANY_IMAGE: &str = "image/*";
/// Files of a thread that are deleted at once.
const ERASE_MAX: u32 = 1_000;

/// A file as a form sent it.
pub(crate) struct Upload {
    pub thread_id: String,
    pub run_id: String,
    pub bytes: Bytes,
    /// Held until the file is stored, because its bytes are in memory until then.
    pub permit: Permit,
}

/// Stores a picture for a later message. A picture that no message uses is deleted after a while.
pub(crate) async fn create(app: &App, caller: &Principal, upload: Upload) -> Result<Attachment, Failure> {
    app.accepting()?;
    let owner = threads::owner(caller)?;
    if upload.bytes.len() > ATTACHMENT_BYTES_MAX {
        return Err(Failure::too_large(Rule::AttachmentSize, "the file", upload.bytes.len(), ATTACHMENT_BYTES_MAX));
    }
    let image = ImageType::sniff(&upload.bytes).ok_or_else(|| {
        let message = "an attachment must be a PNG, JPEG, GIF or WebP picture";
        Failure::rule(Rule::AttachmentType, message)
    })?;
    // Fails for another user's thread. The thread need not exist yet.
    threads::find(app, caller, &upload.thread_id).await?;
    let path = ObjectPath::new(&owner, &upload.thread_id, &upload.run_id, app.ids.body(), image);
    let path = path.ok_or_else(|| Failure::internal("a thread's id that fits makes a path"))?;
    let quota = Quota { bytes: RunInputState::of(app).attachments.quota_bytes, files: ATTACHMENTS_PER_USER_MAX };
    let size = upload.bytes.len() as i64;
    if !store::run_input::attachments::insert(&app.db, &path, size, quota, app.now()).await? {
        let message = format!(
            "with this file you would have more than {} bytes or {} files of attachments; erase a thread first",
            quota.bytes, quota.files
        );
        return Err(Failure::rule(Rule::AttachmentQuota, message));
    }
    app.to_the_end(|app| store_file(app, path.clone(), upload)).await?;
    let mime_type = image.mime_type().to_owned();
    let SignedUrl { bucket, path, url } = sign_path(app, &path);
    Ok(Attachment { bucket, path, mime_type, url })
}

/// Stores the file of a row that exists already: a file without a row would never be deleted.
async fn store_file(app: App, path: ObjectPath, upload: Upload) -> Result<(), Failure> {
    let Upload { bytes, permit: _permit, .. } = upload;
    if let Err(failure) = RunInputState::of(&app).files.put(&path, bytes).await {
        store::run_input::attachments::delete(&app.db, &path).await?;
        return Err(failure);
    }
    // A concurrent erasure of the thread has seen the row, but not the file.
    if !store::run_input::attachments::exists(&app.db, &path).await? {
        RunInputState::of(&app).files.delete(&path).await?;
        return Err(Failure::not_found("thread"));
    }
    Ok(())
}

/// A new URL of a file of the caller.
pub(crate) async fn sign(app: &App, caller: &Principal, request: &SignUrl) -> Result<SignedUrl, Failure> {
    let owner = threads::owner(caller)?;
    let not_found = || Failure::not_found("attachment");
    let path: ObjectPath = request.path.parse().map_err(|_| not_found())?;
    if path.owner != owner {
        return Err(Failure::rule(Rule::Owner, "this attachment belongs to another user"));
    }
    let exists = store::run_input::attachments::exists(&app.db, &path).await?;
    if request.bucket != RunInputState::of(app).files.bucket || !exists {
        return Err(not_found());
    }
    Ok(sign_path(app, &path))
}

/// A file, for any client with a valid URL of it. An expired URL and an altered one are rejected in the same way.
pub(crate) async fn get(app: &App, bucket: &str, path: &str, proof: &Proof) -> Result<(ObjectPath, Bytes), Failure> {
    let refused = || Failure::rule(Rule::AttachmentUrl, "this server did not sign the URL, or it has expired");
    let path: ObjectPath = path.parse().map_err(|_| refused())?;
    if !RunInputState::of(app).files.proves(bucket, &path, proof, app.wall()) {
        return Err(refused());
    }
    let bytes = RunInputState::of(app).files.get(&path).await?.ok_or_else(|| Failure::not_found("attachment"))?;
    Ok((path, bytes))
}

fn sign_path(app: &App, path: &ObjectPath) -> SignedUrl {
    let life = SignedDuration::from_millis(RunInputState::of(app).attachments.url_ttl_ms);
    let until = app.wall().checked_add(life).unwrap_or(Timestamp::MAX);
    let url = RunInputState::of(app).files.url(path, until);
    SignedUrl { bucket: RunInputState::of(app).files.bucket.clone(), path: path.to_string(), url }
}

/// A picture of a message as it is stored in the event: its bucket and path, never its URL. It must be the caller's own, of this
/// thread, or come from a trusted host.
pub(crate) async fn read_picture(
    app: &App,
    caller: &Principal,
    thread_id: &str,
    mime_type: Option<&str>,
    url: &str,
) -> Result<Value, Failure> {
    let invalid = |message: &str| Failure::rule(Rule::AgentAttachmentInvalid, message);
    let owner = threads::owner(caller)?;
    let Some(path) = RunInputState::of(app).files.read_url(url, app.wall()) else {
        if !is_trusted(&RunInputState::of(app).attachments.trusted_hosts, url) {
            return Err(invalid("binary content url must be a signed URL of an attachment, and not have ended"));
        }
        // Both are stored and displayed as they are.
        let mime_type = mime_type.unwrap_or(ANY_IMAGE);
        let fits = url.len() <= TRUSTED_URL_BYTES_MAX && app.redactor.redact(url) == url;
        let is_image = mime_type == ANY_IMAGE || ImageType::parse(mime_type).is_some();
        return match (fits, is_image) {
            (false, _) => Err(invalid("binary content url must be at most 2,048 bytes, and carry no credential")),
            (_, false) => Err(invalid("binary content must be a PNG, JPEG, GIF or WebP picture")),
            _ => Ok(json!({"type": "image", "mimeType": mime_type, "url": url})),
        };
    };
    if path.owner != owner {
        return Err(Failure::rule(Rule::Owner, "this attachment belongs to another user"));
    }
    if path.thread_id != thread_id {
        return Err(invalid("this attachment was uploaded for another thread"));
    }
    // The message may still be rejected; the sweep checks whether it exists.
    if !store::run_input::attachments::update_asked_for(&app.db, &path, app.now()).await? {
        return Err(invalid("this attachment is not there any more"));
    }
    let mime_type = path.image_type().map(ImageType::mime_type);
    Ok(
        json!({"type": "image", "mimeType": mime_type, "bucket": RunInputState::of(app).files.bucket, "path": path.to_string()}),
    )
}

/// A current URL of a picture of a message. `None` if this server cannot serve it.
pub(crate) fn url_of(app: &App, picture: &Picture) -> Option<String> {
    match (&picture.bucket, &picture.path) {
        (Some(bucket), Some(path)) => {
            Some(path).filter(|_| *bucket == RunInputState::of(app).files.bucket).and_then(|path| {
                let path: ObjectPath = path.parse().ok()?;
                Some(sign_path(app, &path).url)
            })
        }
        _ => picture.url.clone(),
    }
}

/// As [`url_of`], or `None` if it is a picture of another thread.
fn url_of_thread(app: &App, session: &Session, picture: &Picture) -> Option<String> {
    let is_own = picture.path.as_deref().is_none_or(|path| {
        let path = path.parse::<ObjectPath>().ok();
        path.is_some_and(|path| {
            session.owner.as_ref() == Some(&path.owner) && session.external_id.as_ref() == Some(&path.thread_id)
        })
    });
    if is_own { url_of(app, picture) } else { None }
}

/// The pictures of a command's message. Only those of its own thread are signed: a command may contain any path.
pub(crate) async fn of_command(app: &App, command: &Command) -> Result<Vec<HistoryAttachment>, Failure> {
    let pictures = pictures(command.payload.as_str());
    if pictures.is_empty() {
        return Ok(vec![]);
    }
    let session = store::kernel::sessions::get(&app.db, command.session).await?;
    let signed = |picture: Picture| {
        let url = url_of_thread(app, session.as_ref()?, &picture)?;
        Some(HistoryAttachment { mime_type: picture.mime_type, url })
    };
    Ok(pictures.into_iter().filter_map(signed).collect())
}

/// Whether a URL is `https` with a host of the list, and with its port if the list has one.
fn is_trusted(hosts: &[String], url: &str) -> bool {
    let Some(rest) = url.strip_prefix("https://") else { return false };
    let host = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let plain = !url.chars().any(|c| c.is_control() || c.is_whitespace());
    plain && hosts.iter().any(|trusted| trusted.eq_ignore_ascii_case(host))
}

/// Deletes files that no message uses and that no message has requested for a while. A file that cannot be deleted is left to the
/// next sweep.
pub(crate) async fn sweep(app: &App) -> Result<usize, Failure> {
    let age = SignedDuration::from_millis(RunInputState::of(app).attachments.unused_ms);
    let before = app.now().checked_sub(age).unwrap_or(Timestamp::MIN);
    let unused = store::run_input::attachments::list_unused(&app.db, before, SWEEP_MAX).await?;
    let mut deleted = 0;
    for path in unused {
        match delete_unused(app, &path, before).await {
            Ok(is_deleted) => deleted += usize::from(is_deleted),
            Err(failure) => {
                tracing::warn!(%failure, cause = failure.cause.as_deref(), %path, "an attachment could not be deleted")
            }
        }
    }
    Ok(deleted)
}

/// False if a message uses or requests the file.
async fn delete_unused(app: &App, path: &ObjectPath, before: Timestamp) -> Result<bool, Failure> {
    if !store::run_input::attachments::update_let_go(&app.db, path, before, app.now()).await? {
        return Ok(false);
    }
    if store::run_input::attachments::is_used(&app.db, path).await? {
        store::run_input::attachments::update_used(&app.db, path, app.now()).await?;
        return Ok(false);
    }
    remove(app, path).await.map(|()| true)
}

/// Deletes the row last: while it exists, the next sweep tries again.
async fn remove(app: &App, path: &ObjectPath) -> Result<(), Failure> {
    RunInputState::of(app).files.delete(path).await?;
    Ok(store::run_input::attachments::delete(&app.db, path).await?)
}

/// Deletes the files that a thread had when it was erased; later ones belong to the next thread with that id. Idempotent. False:
/// a hold covers the session, and the other files are left.
pub(crate) async fn erase(
    app: &App,
    session: Option<SessionId>,
    owner: &str,
    thread_id: &str,
    erased_at: Timestamp,
) -> Result<bool, Failure> {
    loop {
        let files =
            store::run_input::attachments::list_by_thread(&app.db, owner, thread_id, erased_at, ERASE_MAX).await;
        let files = files?;
        for path in &files {
            if let Some(session) = session
                && store::retention::is_held(&app.db, session).await?
            {
                return Ok(false);
            }
            remove(app, path).await?;
        }
        if files.len() < ERASE_MAX as usize {
            return Ok(true);
        }
    }
}

/// Pictures are deleted after their limit, whether a message shows them or not.
pub(crate) fn retention() -> RetentionStep {
    RetentionStep::new(
        RetentionNoun::Attachments,
        Ownership::TenantOrNone,
        |app, page| async move {
            store::run_input::attachments::list_removable(&app.db, &page.scope, page.after.as_deref(), page.limit).await
        },
        |app, scope, keys| async move { expire(&app, &scope, &keys).await },
    )
    .tables(&["attachments"])
}

async fn expire(app: &App, scope: &RetentionScope, keys: &[String]) -> Result<RemovedItems, Failure> {
    let Some(path) = keys.first().and_then(|key| key.parse::<ObjectPath>().ok()) else {
        return Ok(RemovedItems::default());
    };
    let expired = store::run_input::attachments::update_expired(&app.db, scope, &path.to_string(), app.now()).await?;
    let Some(removed) = expired else { return Ok(RemovedItems::default()) };
    remove(app, &path).await.map(|()| removed)
}

#[cfg(test)]
mod tests {
    use super::is_trusted;

    #[test]
    fn only_the_very_host_is_trusted() {
        let hosts = ["storage.example.com".to_owned(), "cdn.example:8443".to_owned()];
        for good in [
            "https://storage.example.com/agent-inputs/user-123/image.png?signature=xxx",
            "https://STORAGE.example.com/x",
            "https://cdn.example:8443/x.png",
        ] {
            assert!(is_trusted(&hosts, good), "{good}");
        }
        for bad in [
            "http://storage.example.com/x",
            "https://storage.example.com.evil/x",
            "https://evil/storage.example.com",
            "https://storage.example.com@evil/x",
            "https://evil#storage.example.com",
            "https://cdn.example/x",
            "https://storage.example.com:444/x",
            "https://evil\\storage.example.com",
            "https://storage.example.com/\n",
            "ftp://storage.example.com/x",
            "",
        ] {
            assert!(!is_trusted(&hosts, bad), "{bad}");
        }
        assert!(!is_trusted(&[], "https://storage.example.com/x"));
    }
}
