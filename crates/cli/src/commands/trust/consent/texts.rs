//! The texts of the consent screens in each language. Every text is a field of [`Texts`], so that no language can lack one.

use ostler_protocol::trust::{
    i18n::Language,
    manifest::{DiffRule, Sensitivity},
    relations::ScopeState,
};

use crate::terminal::output::count;

pub(crate) struct Texts {
    pub asks_for: fn(usize) -> String,
    pub asks_for_nothing: &'static str,
    /// The agent's id and who owns it.
    pub who: fn(&str, &str) -> String,
    pub nothing_waits: &'static str,
    /// By sensitivity: low, medium, high.
    pub levels: [&'static str; 3],
    pub tools: &'static str,
    pub needed: &'static str,
    pub once: &'static str,
    pub for_time: fn(&str) -> String,
    pub never: &'static str,
    pub without_limits: &'static str,
    /// The new choice beside the former one.
    pub now: fn(&str, &str) -> String,
    pub was_granted: &'static str,
    pub was_refused: &'static str,
    pub was_expired: &'static str,
    pub is_new: &'static str,
    /// By how many scopes there are.
    pub help: fn(usize) -> String,
    pub not_understood: fn(&str) -> String,
    /// The maximum lifetime of a grant.
    pub too_long: fn(&str) -> String,
    pub confirm: fn(usize, usize, &str) -> String,
    /// The same if scopes are revoked.
    pub confirm_loss: fn(usize, usize, &str, &str) -> String,
    pub granted: fn(&str) -> String,
    pub nothing_granted: &'static str,
    pub nothing_done: &'static str,
    pub changed: fn(i64, i64) -> String,
    pub unchanged: &'static str,
}

const EN: Texts = Texts {
    asks_for: |count| match count {
        1 => "asks for one scope. Nothing is granted unless you say so.".into(),
        count => format!("asks for {count} scopes. Nothing is granted unless you say so."),
    },
    asks_for_nothing: "asks for nothing.",
    who: |id, owner| format!("{id}, owned by {owner}"),
    nothing_waits: "nothing waits for an answer",
    levels: ["Low: used without asking you", "Medium: asks you once a day", "High: asks you every time"],
    tools: "used by",
    // A claim of its manifest, not of this server.
    needed: "the agent states that it does not work without this",
    once: "once",
    for_time: |time| format!("for {time}"),
    never: "never",
    without_limits: "granted",
    now: |before, now| format!("{before}; now: {now}"),
    was_granted: "paused since the agent changed",
    was_refused: "refused before",
    was_expired: "its time is over",
    is_new: "new",
    help: |count| {
        let n = count.min(2);
        format!(
            "A number grants that scope or takes it back; `{n} once`, `{n} 1h`, `{n} always`, `{n} never`; `all`, `none`.\n\
             Enter goes on, `q` leaves everything as it is, `?` shows this help."
        )
    },
    not_understood: |text| format!("unknown choice {text:?}; type `?` for help"),
    too_long: |most| format!("a grant lasts {most} at most; `always` has no end"),
    confirm: |granted, all, agent| format!("Grant {granted} of {} to {agent}?", count(all as i64, "scope")),
    confirm_loss: |granted, all, agent, lost| {
        format!("Grant {granted} of {} to {agent}, and take back {lost}?", count(all as i64, "scope"))
    },
    granted: |scopes| format!("granted {scopes}"),
    nothing_granted: "nothing granted",
    nothing_done: "nothing was changed",
    changed: |from, to| format!("has changed since you consented (manifest {from}, now {to}):"),
    unchanged: "has not changed since you consented.",
};

const ZH: Texts = Texts {
    asks_for: |count| format!("请求 {count} 项权限。未经你同意，不会授予任何权限。"),
    asks_for_nothing: "没有请求任何权限。",
    who: |id, owner| format!("{id}，所有者 {owner}"),
    nothing_waits: "没有等待你答复的变更",
    levels: ["低：使用时不再询问", "中：每天询问一次", "高：每次都询问"],
    tools: "用于",
    needed: "该 Agent 声明缺少它就无法使用",
    once: "仅一次",
    for_time: |time| format!("限时 {time}"),
    never: "始终拒绝",
    without_limits: "授予",
    now: |before, now| format!("{before}；现在：{now}"),
    was_granted: "Agent 变更后已暂停",
    was_refused: "此前已拒绝",
    was_expired: "已到期",
    is_new: "新增",
    help: |count| {
        let n = count.min(2);
        format!(
            "输入编号以授予或取消；`{n} once` 仅一次，`{n} 1h` 限时，`{n} always` 不限，`{n} never` 始终拒绝；`all` 全选，`none` 全不选。\n\
             直接回车继续，`q` 保持不变并退出，`?` 再次显示本说明。"
        )
    },
    not_understood: |text| format!("无法理解：{text:?}；输入 `?` 查看说明"),
    too_long: |most| format!("授权最长 {most}；`always` 表示不限时"),
    confirm: |granted, all, agent| format!("向 {agent} 授予 {all} 项权限中的 {granted} 项？"),
    confirm_loss: |granted, all, agent, lost| format!("向 {agent} 授予 {all} 项权限中的 {granted} 项，并收回 {lost}？"),
    granted: |scopes| format!("已授予 {scopes}"),
    nothing_granted: "未授予任何权限",
    nothing_done: "未做任何更改",
    changed: |from, to| format!("自你同意以来已变更（清单版本 {from}，现为 {to}）："),
    unchanged: "自你同意以来没有变更。",
};

pub(crate) fn texts(language: Language) -> &'static Texts {
    match language {
        Language::En => &EN,
        Language::Zh => &ZH,
    }
}

impl Texts {
    pub(crate) fn level(&self, sensitivity: Sensitivity) -> &'static str {
        self.levels[sensitivity as usize]
    }

    /// What a person should know about a scope before they answer.
    pub(crate) fn state(&self, state: ScopeState) -> Option<&'static str> {
        match state {
            ScopeState::Suspended => Some(self.was_granted),
            ScopeState::Denied => Some(self.was_refused),
            ScopeState::Expired => Some(self.was_expired),
            ScopeState::Granted | ScopeState::Unanswered => None,
        }
    }
}

/// The meaning of a change for a person who does not read schemas. `subject` is the scope or the tool.
pub(crate) fn describe_change(language: Language, rule: DiffRule, breaking: bool, subject: &str) -> String {
    let (en, zh) = match rule {
        DiffRule::ScopeAdded => ("asks for a new scope", "新增权限"),
        DiffRule::ScopeRemoved => {
            ("asks for a scope no longer; your grant of it has ended", "不再请求该权限，你的授权已失效")
        }
        DiffRule::ScopeRaised => ("calls a scope more sensitive", "权限的敏感度提高"),
        DiffRule::ScopeLowered => (
            "calls a scope less sensitive; it stays as it was until you grant it again",
            "权限的敏感度降低；在你重新授权之前保持原级别",
        ),
        DiffRule::ToolAdded => ("has a new tool", "新增工具"),
        DiffRule::ToolRemoved => ("has lost a tool", "移除工具"),
        DiffRule::ToolScopeRaised => ("moved a tool to a more sensitive scope", "工具移到敏感度更高的权限"),
        DiffRule::ToolScopeMoved => ("moved a tool to another scope", "工具移到另一权限"),
        DiffRule::ToolMadeRequired => ("cannot do without a tool any more", "工具变为必需"),
        DiffRule::ToolMadeOptional => ("can do without a tool now", "工具变为可选"),
        DiffRule::TextChanged => ("describes itself in other words", "说明文字有改动"),
        _ if breaking => ("uses a tool in another way", "工具的用法有改动"),
        _ => ("has changed something that you need not answer to", "有无需你答复的改动"),
    };
    let text = if language == Language::Zh { zh } else { en };
    format!("{text}: {subject}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_language_lacks_a_text() {
        for language in Language::ALL {
            let texts = texts(language);
            let all = [texts.needed, texts.once, texts.never, texts.tools, texts.is_new, texts.nothing_done];
            assert!(all.iter().chain(&texts.levels).all(|text| !text.is_empty()), "{language:?}");
            for command in ["`2 once`", "`2 1h`", "`2 always`", "`2 never`", "`all`", "`none`", "`q`", "`?`"] {
                assert!((texts.help)(3).contains(command), "{language:?} explains {command}");
            }
            let of_one = (texts.help)(1);
            assert!(of_one.contains("`1 once`") && !of_one.contains("`2 "), "{language:?}: there is no scope 2");
            assert!((texts.confirm)(2, 3, "notes").contains("notes"));
            assert!((texts.confirm_loss)(2, 3, "notes", "a:read").contains("a:read"));
            assert!((texts.too_long)("3660d").contains("3660d"));
        }
        assert_eq!((texts(Language::En).confirm)(1, 1, "notes"), "Grant 1 of 1 scope to notes?");
    }
}
