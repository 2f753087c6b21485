//! All problems of a `config.toml` that a user sends, in one failure: each with its line, and for an unknown name the setting that was
//! probably meant. Values are never quoted: a user may have written a key there.

use std::collections::BTreeMap;

use toml::de::DeTable;

use super::{
    AgentConfig, ProfileConfig,
    config::{OUR_TABLE, OurTable, SETTINGS, agent, check_files, check_url, check_window, line_of, parse, refused},
};
use crate::{Failure, ids, text::clip};

const NAME_CHARS_MAX: usize = 80;

impl ProfileConfig {
    /// Reads a config that a user sends. Codex ignores a top-level `base_url`, so it is a forgotten table `[ostler]`.
    pub fn read_new(text: &str) -> Result<Self, Failure> {
        let table = parse(text)?;
        let lines = lines(text);
        let mut problems: Vec<_> = problems(&table).into_iter().map(|problem| located(problem, &lines)).collect();
        problems.sort_by_key(|(line, _)| *line);
        Failure::check_all(problems.into_iter().map(|(_, problem)| problem).collect())?;
        let config = Self::read(text)?;
        if config.agent == AgentConfig::Codex && config.own.contains_key("base_url") {
            let message = "base_url is not a setting of Codex; for the model backend write it below a line [ostler], \
                           with agent = \"model\" and model";
            return Err(located(refused(message).detail("field", "base_url"), &lines).1);
        }
        Ok(config)
    }
}

/// Every problem of our table. Codex's own settings are not checked.
fn problems(config: &toml::Table) -> Vec<Failure> {
    let Some(ours) = config.get(OUR_TABLE) else { return vec![] };
    let Some(ours) = ours.as_table() else {
        return vec![refused("ostler must be a table: write its settings below a line [ostler]")];
    };
    // Fields are read one by one, so that one that does not fit hides no other.
    let (mut problems, mut fitting) = (vec![], toml::Table::new());
    for (name, value) in ours {
        let mut alone = toml::Table::new();
        alone.insert(name.clone(), value.clone());
        match OurTable::read(toml::Value::Table(alone)) {
            Ok(_) => drop(fitting.insert(name.clone(), value.clone())),
            Err(failure) if SETTINGS.contains(&name.as_str()) => problems.push(failure),
            Err(_) => problems.push(unknown(name)),
        }
    }
    let is_whole = problems.is_empty();
    let Ok(ours) = OurTable::read(toml::Value::Table(fitting)) else { return problems };
    let checks = [
        check_files(&ours.files),
        ours.prices.check(),
        check_window(ours.context_window),
        ours.base_url.as_deref().map_or(Ok(()), check_url),
        ours.model.as_deref().map_or(Ok(()), |model| ids::name("ostler.model", model).map(drop)),
    ];
    problems.extend(checks.into_iter().filter_map(Result::err));
    // A misspelt name would be reported again, as a missing setting.
    let of_agent = if is_whole { agent(ours).err() } else { None };
    let of_agent = of_agent.filter(|failure| problems.iter().all(|known| known.message != failure.message));
    problems.extend(of_agent);
    problems
}

fn unknown(name: &str) -> Failure {
    let nearest = SETTINGS.iter().map(|known| (distance(name, known), known)).min();
    let similar = nearest.filter(|(distance, known)| *distance <= (known.len() / 4).clamp(2, 3));
    let hint = similar.map(|(_, known)| format!("; did you mean {OUR_TABLE}.{known}?")).unwrap_or_default();
    let place = format!("{OUR_TABLE}.{}", clip(name, NAME_CHARS_MAX));
    refused(&format!("{place} is no setting{hint}")).detail("field", place)
}

/// How many characters differ: inserted, left out or replaced.
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().take(NAME_CHARS_MAX).enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

/// The line of each key and table, by its path.
fn lines(text: &str) -> BTreeMap<String, usize> {
    fn collect(above: &str, table: &DeTable<'_>, text: &str, lines: &mut BTreeMap<String, usize>) {
        for (key, value) in table {
            let name = format!("{above}{}", key.get_ref());
            lines.insert(name.clone(), line_of(text, key.span().start));
            if let Some(inner) = value.get_ref().as_table() {
                collect(&format!("{name}."), inner, text, lines);
            }
        }
    }
    let mut lines = BTreeMap::new();
    if let Ok(table) = DeTable::parse(text) {
        collect("", table.get_ref(), text, &mut lines);
    }
    lines
}

/// The problem with its line: that of the field that it names, else that of the table above.
fn located(problem: Failure, lines: &BTreeMap<String, usize>) -> (usize, Failure) {
    let field = problem.details.as_ref().and_then(|details| details.get("field")).and_then(|field| field.as_str());
    let first_word = problem.message.split(' ').next().filter(|word| word.starts_with(OUR_TABLE));
    let mut name = field.or(first_word).unwrap_or(OUR_TABLE);
    let line = loop {
        match (lines.get(name), name.rsplit_once('.')) {
            (Some(line), _) => break *line,
            (None, Some((above, _))) => name = above,
            (None, None) => break lines.get(OUR_TABLE).copied().unwrap_or(1),
        }
    };
    (line, problem.detail("line", line))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failures::PROBLEMS;

    fn refusal(text: &str) -> Vec<(u64, String)> {
        let failure = ProfileConfig::read_new(text).expect_err(text);
        let details = failure.details.unwrap();
        let listed = details.get(PROBLEMS).and_then(|list| list.as_array().cloned());
        let one = serde_json::json!({"line": details["line"], "message": failure.message});
        let problem = |problem: &serde_json::Value| {
            (problem["line"].as_u64().unwrap(), problem["message"].as_str().unwrap().to_owned())
        };
        listed.unwrap_or_else(|| vec![one]).iter().map(problem).collect()
    }

    #[test]
    fn every_problem_is_reported_with_its_line() {
        let text = "[ostler]\nagnet = \"model\"\nbase_url = \"ftp://pl4nted\"\nmodel = [\"pl4nted\"]\ncontext_window = 0\nzzz = 1\n";
        let found = refusal(text);
        assert_eq!(
            found,
            [
                (2, "ostler.agnet is no setting; did you mean ostler.agent?".to_owned()),
                (3, "ostler.base_url must be an http or https URL without a user or password".to_owned()),
                (4, "ostler.model is not a setting we know, or not of its type".to_owned()),
                (5, "ostler.context_window must be 1 to 1000000000 tokens".to_owned()),
                (6, "ostler.zzz is no setting".to_owned()),
            ]
        );
    }

    #[test]
    fn a_single_problem_has_its_line_too() {
        let found = refusal("model = \"gpt\"\n[ostler]\nagent = \"model\"\nmodel = \"m\"\n");
        assert_eq!(found, [(2, "for model the table [ostler] needs base_url and model".to_owned())]);
        let found =
            refusal("[ostler]\nagent = \"model\"\nbase_url = \"http://a\"\nmodel = \"m\"\ncommand = [\"sh\"]\n");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(refusal("a = 1\nb =\n"), [(2, "config.toml is not TOML; see line 2".to_owned())]);
    }

    #[test]
    fn what_is_refused_is_not_quoted() {
        for text in ["[ostler]\nagent = \"pl4nted\"", "ostler = \"pl4nted\"", "[ostler.prices.m]\ninput = \"pl4nted\""]
        {
            let failure = ProfileConfig::read_new(text).expect_err(text);
            assert!(!format!("{failure:?}").contains("pl4nted"), "{failure:?}");
        }
    }

    #[test]
    fn an_address_outside_of_our_table_is_refused_in_new_configs() {
        let forgotten = "base_url = \"http://127.0.0.1:11434/v1\"\nmodel = \"m\"\n";
        let message = ProfileConfig::read_new(forgotten).unwrap_err().message;
        assert!(message.contains("below a line [ostler]"), "{message}");
        assert_eq!(ProfileConfig::read(forgotten).unwrap().agent, AgentConfig::Codex, "stored configs stay readable");
        let codex = "model_provider = \"p\"\n[model_providers.p]\nbase_url = \"http://127.0.0.1:1/v1\"\n";
        assert!(ProfileConfig::read_new(codex).is_ok());
    }
}
