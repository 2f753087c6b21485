//! A database URL with several hosts, as libpq writes it: `postgres://user@h1:5432,h2:5433/db?target_session_attrs=read-write`.
//! sqlx takes one host, so the URL is split into one URL for each of them. No error repeats a part of the URL: it may hold
//! a password.

/// Each host is tried in turn, so many of them take longer than a caller waits.
const HOSTS_MAX: usize = 8;

/// The state that a session must have, by the names of libpq's `target_session_attrs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionAttributes {
    Any,
    ReadWrite,
    ReadOnly,
    Primary,
    Standby,
    PreferStandby,
}

impl SessionAttributes {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "any" => Self::Any,
            "read-write" => Self::ReadWrite,
            "read-only" => Self::ReadOnly,
            "primary" => Self::Primary,
            "standby" => Self::Standby,
            "prefer-standby" => Self::PreferStandby,
            _ => return None,
        })
    }

    /// What is required of the hosts at the first round over them, and at the second if no host fits.
    pub(crate) fn rounds(self) -> &'static [Self] {
        match self {
            Self::Any => &[Self::Any],
            Self::ReadWrite => &[Self::ReadWrite],
            Self::ReadOnly => &[Self::ReadOnly],
            Self::Primary => &[Self::Primary],
            Self::Standby => &[Self::Standby],
            Self::PreferStandby => &[Self::Standby, Self::Any],
        }
    }

    pub(crate) fn accepts(self, state: HostState) -> bool {
        match self {
            Self::Any | Self::PreferStandby => true,
            Self::ReadWrite => !state.is_read_only && !state.is_in_recovery,
            Self::ReadOnly => state.is_read_only || state.is_in_recovery,
            Self::Primary => !state.is_in_recovery,
            Self::Standby => state.is_in_recovery,
        }
    }
}

/// What a host reports about a new session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostState {
    pub(crate) is_in_recovery: bool,
    pub(crate) is_read_only: bool,
}

/// What the connections are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Write,
    Read,
}

/// The hosts of a database URL. It has no `Debug`, because the URLs may hold a password.
pub(crate) struct DatabaseAddress {
    /// One URL for each host, in the order of the list. There is at least one.
    pub(crate) urls: Vec<String>,
    pub(crate) attributes: SessionAttributes,
}

impl DatabaseAddress {
    /// Splits the URL. With several hosts and no `target_session_attrs`, connections that write go to the host that takes
    /// writes, and connections that read to a standby if there is one.
    pub(crate) fn parse(url: &str, purpose: Purpose) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once("://").ok_or("the database URL has no scheme")?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let (user, listed) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (format!("{user}@"), hosts),
            None => (String::new(), authority),
        };
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let query = UrlParameters::parse(query)?;
        let hosts = query.hosts(listed)?;
        let of_host = |(host, own): &(String, Vec<String>)| {
            let pairs: Vec<&str> = query.rest.iter().copied().chain(own.iter().map(String::as_str)).collect();
            let query = if pairs.is_empty() { String::new() } else { format!("?{}", pairs.join("&")) };
            format!("{scheme}://{user}{host}{path}{query}")
        };
        let urls: Vec<String> = hosts.iter().map(of_host).collect();
        let attributes = match (query.attributes, purpose) {
            (None, _) if urls.len() == 1 => SessionAttributes::Any,
            (None, Purpose::Write) => SessionAttributes::ReadWrite,
            (None, Purpose::Read) => SessionAttributes::PreferStandby,
            (
                Some(SessionAttributes::ReadOnly | SessionAttributes::Standby | SessionAttributes::PreferStandby),
                Purpose::Write,
            ) => {
                return Err("target_session_attrs of a database that is written must be read-write, primary or any");
            }
            (Some(attributes), _) => attributes,
        };
        Ok(Self { urls, attributes })
    }
}

/// The parameters of a URL. Those that sqlx does not know, or that are lists, are taken out.
struct UrlParameters<'a> {
    attributes: Option<SessionAttributes>,
    hosts: Option<String>,
    ports: Option<String>,
    /// All others, as written.
    rest: Vec<&'a str>,
}

impl<'a> UrlParameters<'a> {
    fn parse(text: &'a str) -> Result<Self, &'static str> {
        let mut query = Self { attributes: None, hosts: None, ports: None, rest: vec![] };
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("target_session_attrs", name)) => {
                    let attributes = SessionAttributes::parse(name).ok_or(
                        "target_session_attrs must be any, read-write, read-only, primary, standby or prefer-standby",
                    )?;
                    query.attributes = Some(attributes);
                }
                Some(("host", list)) if is_list(list) => query.hosts = Some(unescaped(list)),
                Some(("port", list)) if is_list(list) => query.ports = Some(unescaped(list)),
                _ => query.rest.push(pair),
            }
        }
        Ok(query)
    }

    /// The hosts, each as it is written in front of the path, and with parameters of its own.
    fn hosts(&self, listed: &str) -> Result<Vec<(String, Vec<String>)>, &'static str> {
        let before_path: Vec<&str> = listed.split(',').collect();
        let mut hosts: Vec<(String, Vec<String>)> = match &self.hosts {
            Some(_) if before_path.len() > 1 => return Err("the database URL lists its hosts twice"),
            Some(list) => list.split(',').map(|host| (listed.to_owned(), vec![format!("host={host}")])).collect(),
            None => before_path.iter().map(|host| ((*host).to_owned(), vec![])).collect(),
        };
        if hosts.len() > HOSTS_MAX {
            return Err("the database URL has more than 8 hosts");
        }
        let is_empty = |(host, own): &(String, Vec<String>)| match own.first() {
            Some(named) => named == "host=",
            None => host.is_empty() || host.starts_with(':'),
        };
        if hosts.len() > 1 && hosts.iter().any(is_empty) {
            return Err("a host in the list of the database URL is empty");
        }
        if let Some(ports) = &self.ports {
            let ports: Vec<&str> = ports.split(',').collect();
            if ports.len() != hosts.len() {
                return Err("the database URL must have one port, or as many as hosts");
            }
            hosts.iter_mut().zip(ports).for_each(|((_, own), port)| own.push(format!("port={port}")));
        }
        Ok(hosts)
    }
}

fn is_list(value: &str) -> bool {
    unescaped(value).contains(',')
}

/// The value with its commas as such. Programs that assemble URLs escape them.
fn unescaped(value: &str) -> String {
    value.replace("%2C", ",").replace("%2c", ",")
}

/// Why the URL cannot be used. `None` if its hosts can be tried; whether they answer is another matter.
pub fn database_url_problem(url: &str, is_written: bool) -> Option<&'static str> {
    let purpose = if is_written { Purpose::Write } else { Purpose::Read };
    DatabaseAddress::parse(url, purpose).err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> (Vec<String>, SessionAttributes) {
        let address =
            DatabaseAddress::parse(url, Purpose::Write).map_err(|problem| format!("{url}: {problem}")).unwrap();
        (address.urls, address.attributes)
    }

    #[test]
    fn one_host_stays_as_it_is_written() {
        for url in [
            "postgres://me:p%40ss@db.example:5433/x?sslmode=disable",
            "postgres:///x",
            "postgres://me@[::1]:5433/x",
            "postgres://me@%2Fvar%2Frun/x",
            "postgres:///x?host=/var/run&port=5433",
            "postgres://h",
        ] {
            assert_eq!(parsed(url), (vec![url.to_owned()], SessionAttributes::Any));
        }
    }

    #[test]
    fn each_host_of_a_list_has_a_url_with_everything_else() {
        let (urls, attributes) =
            parsed("postgresql://me:p,w@h1:1,[::2]:2,h3/x?sslmode=require&target_session_attrs=primary");
        let expected = [
            "postgresql://me:p,w@h1:1/x?sslmode=require",
            "postgresql://me:p,w@[::2]:2/x?sslmode=require",
            "postgresql://me:p,w@h3/x?sslmode=require",
        ];
        assert_eq!(urls, expected);
        assert_eq!(attributes, SessionAttributes::Primary);
    }

    #[test]
    fn hosts_can_be_listed_as_parameters() {
        let (urls, _) = parsed("postgres:///x?host=h1%2Ch2&port=1,2&user=me");
        assert_eq!(urls, ["postgres:///x?user=me&host=h1&port=1", "postgres:///x?user=me&host=h2&port=2"]);
        let (urls, _) = parsed("postgres:///x?host=h1,h2&port=1");
        assert_eq!(urls, ["postgres:///x?port=1&host=h1", "postgres:///x?port=1&host=h2"]);
    }

    #[test]
    fn a_list_without_attributes_is_for_the_host_that_fits_the_purpose() {
        let url = "postgres://h1,h2/x";
        assert_eq!(parsed(url).1, SessionAttributes::ReadWrite);
        assert_eq!(DatabaseAddress::parse(url, Purpose::Read).unwrap().attributes, SessionAttributes::PreferStandby);
        let standby = "postgres://h1/x?target_session_attrs=standby";
        assert_eq!(DatabaseAddress::parse(standby, Purpose::Read).unwrap().attributes, SessionAttributes::Standby);
        assert_eq!(DatabaseAddress::parse(standby, Purpose::Read).unwrap().urls, ["postgres://h1/x"]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused_without_repeating_it() {
        for url in [
            "h1",
            "postgres://me:planted@h1,,h2/x",
            "postgres://me:planted@h1,:5432/x",
            "postgres://me:planted@h1,h2/x?target_session_attrs=planted",
            "postgres://me:planted@h1/x?target_session_attrs=standby",
            "postgres://me:planted@h1,h2/x?port=1,2,3",
            "postgres://me:planted@h1,h2/x?host=h3,h4",
            "postgres://me:planted@1,2,3,4,5,6,7,8,9/x",
        ] {
            let problem = DatabaseAddress::parse(url, Purpose::Write).err().expect("it is refused");
            assert!(!problem.contains("planted"), "{problem}");
            assert_eq!(database_url_problem(url, true), Some(problem));
        }
    }

    #[test]
    fn a_session_is_accepted_by_what_its_host_reports() {
        use SessionAttributes::{Any, Primary, ReadOnly, ReadWrite, Standby};
        let state = |is_in_recovery, is_read_only| HostState { is_in_recovery, is_read_only };
        for (state, accepted) in [
            (state(false, false), &[Any, ReadWrite, Primary][..]),
            // A primary whose operator has made it read-only.
            (state(false, true), &[Any, ReadOnly, Primary]),
            (state(true, true), &[Any, ReadOnly, Standby]),
        ] {
            for attributes in [Any, ReadWrite, ReadOnly, Primary, Standby] {
                assert_eq!(attributes.accepts(state), accepted.contains(&attributes), "{attributes:?} {state:?}");
            }
        }
    }
}
