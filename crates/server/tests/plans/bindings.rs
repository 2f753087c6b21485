//! What the text of a statement shows about the rows that it reaches: the tables in it, and which of their columns have values that
//! the statement gives. Covers the SQL that the store writes, not all of SQL.

use std::collections::BTreeSet;

/// A word, a sign, or a part in parentheses.
#[derive(Debug)]
enum Node<'a> {
    Token(&'a str),
    Group(Vec<Node<'a>>),
}

use Node::{Group, Token};

/// A table in a statement, under the name that the statement gives it.
#[derive(Debug)]
pub(crate) struct TableUse {
    pub name: String,
    alias: String,
    block: usize,
    /// Its rows are values of the statement, or rows of another part of it.
    is_given: bool,
}

/// A column of a table in the statement, by the number of the table.
pub(crate) type ColumnUse = (usize, String);

/// The tables of a statement and the comparisons that hold for every row that it reaches.
#[derive(Default, Debug)]
pub(crate) struct Bindings {
    pub tables: Vec<TableUse>,
    blocks: Vec<Block>,
    bound: BTreeSet<ColumnUse>,
    equal: Vec<(ColumnUse, ColumnUse)>,
}

/// A `SELECT`, `INSERT`, `UPDATE` or `DELETE`.
#[derive(Debug)]
struct Block {
    parent: Option<usize>,
    /// Without that of the blocks in it.
    text: String,
}

const BEFORE_TABLE: [&str; 5] = ["FROM", "JOIN", "INTO", "UPDATE", "USING"];
const STARTS: [&str; 6] = ["SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "VALUES"];
/// Words that end the name of a table, or a condition.
const CLAUSES: &str = "WHERE ON SET FROM USING JOIN LEFT INNER CROSS LATERAL GROUP ORDER LIMIT HAVING RETURNING UNION EXCEPT \
                       INTERSECT FOR SELECT VALUES DO DEFAULT WINDOW";

fn is_clause(word: &str) -> bool {
    CLAUSES.split_whitespace().any(|clause| clause == word)
}

impl Bindings {
    pub(crate) fn of(sql: &str) -> Self {
        let tokens = tokens(sql);
        let nodes = tree(&mut tokens.into_iter());
        let mut bindings = Self::default();
        let names = common_names(&nodes);
        bindings.block(&nodes, None, &names);
        bindings.close();
        bindings
    }

    /// The text of the part of the statement that a table is in: `(…)` stands for further parts, and commas have blanks around them.
    pub(crate) fn text_of(&self, table: &TableUse) -> &str {
        &self.blocks[table.block].text
    }

    /// Whether the statement gives the value of a column, or some values.
    pub(crate) fn is_bound(&self, table: usize, column: &str) -> bool {
        self.bound.contains(&(table, column.to_owned()))
    }

    /// Pairs of columns of which the second has the value of the first wherever rows of both are reached. A part in parentheses, such
    /// as that of `NOT EXISTS`, says nothing about the rows around it.
    pub(crate) fn joins(&self) -> impl Iterator<Item = (&ColumnUse, &ColumnUse)> {
        let both = self.equal.iter().flat_map(|(one, other)| [(one, other), (other, one)]);
        both.filter(|(from, to)| self.is_within(self.tables[to.0].block, self.tables[from.0].block))
    }

    fn is_within(&self, block: usize, outer: usize) -> bool {
        block == outer || self.blocks[block].parent.is_some_and(|parent| self.is_within(parent, outer))
    }

    fn block<'a>(&mut self, nodes: &[Node<'a>], parent: Option<usize>, common: &BTreeSet<&'a str>) {
        let number = self.blocks.len();
        self.blocks.push(Block { parent, text: text(nodes) });
        self.find_tables(nodes, number, common);
        self.find_conditions(nodes, number);
        self.find_inner(nodes, number, common);
    }

    fn find_inner<'a>(&mut self, nodes: &[Node<'a>], parent: usize, common: &BTreeSet<&'a str>) {
        for node in nodes {
            let Group(inner) = node else { continue };
            match is_block(inner) {
                true => self.block(inner, Some(parent), common),
                false => self.find_inner(inner, parent, common),
            }
        }
    }

    fn find_tables(&mut self, nodes: &[Node<'_>], block: usize, common: &BTreeSet<&str>) {
        let mut at = 0;
        let mut is_list = false;
        while at < nodes.len() {
            let word = word(nodes, at);
            let is_comparison = at > 0 && word_is(nodes, at - 1, "DISTINCT");
            let starts = BEFORE_TABLE.contains(&word) && !is_comparison;
            let continues = word == "," && is_list;
            is_list = match word {
                "FROM" | "USING" => true,
                "JOIN" | "ON" | "LEFT" | "INNER" | "CROSS" | "LATERAL" => is_list,
                word => is_list && !is_clause(word),
            };
            at += 1;
            if starts || continues {
                at += usize::from(word_is(nodes, at, "LATERAL"));
                at = self.table(nodes, at, block, common);
            }
        }
    }

    /// Reads one table, and returns where the text after it begins.
    fn table(&mut self, nodes: &[Node<'_>], at: usize, block: usize, common: &BTreeSet<&str>) -> usize {
        let name = word(nodes, at);
        if ["SET", "SKIP", "NOWAIT", "OF"].contains(&name) {
            return at;
        }
        let is_insert = at > 1 && word_is(nodes, at - 1, "INTO");
        let mut after = at + 1;
        // `INTO` has columns in parentheses, others the arguments of a function.
        let arguments = match nodes.get(after) {
            Some(Group(inner)) if !name.is_empty() => Some(inner),
            _ => None,
        };
        after += usize::from(arguments.is_some());
        let derived = match nodes.get(at) {
            Some(Group(inner)) => has_parameter(inner),
            _ => false,
        };
        let is_function = arguments.is_some() && !is_insert;
        let is_given =
            common.contains(name) || derived || arguments.is_some_and(|inner| is_function && has_parameter(inner));
        after += usize::from(word_is(nodes, after, "AS"));
        let found = word(nodes, after);
        let has_alias = !is_insert && !["", ","].contains(&found) && !is_clause(found);
        let alias = if has_alias { found } else { name };
        let name = if is_function { "" } else { name };
        self.tables.push(TableUse { name: name.to_owned(), alias: alias.to_owned(), block, is_given });
        if let (true, Some(columns)) = (is_insert, arguments) {
            let table = self.tables.len() - 1;
            let names = columns.iter().filter_map(|node| if let Token(name) = node { Some(*name) } else { None });
            self.bound.extend(names.map(|name| (table, name.to_owned())));
        }
        after + usize::from(has_alias)
    }

    fn find_conditions(&mut self, nodes: &[Node<'_>], block: usize) {
        let mut at = 0;
        while at < nodes.len() {
            let is_condition =
                word_is(nodes, at, "WHERE") || (word_is(nodes, at, "ON") && !word_is(nodes, at + 1, "CONFLICT"));
            at += 1;
            if !is_condition {
                continue;
            }
            let rest = &nodes[at..];
            let ends = |node: &Node<'_>| matches!(node, Token(word) if is_clause(word));
            let end = rest.iter().position(ends).unwrap_or(rest.len());
            self.condition(&rest[..end], block);
            at += end;
        }
    }

    /// Notes what holds for every row that meets a condition.
    fn condition(&mut self, nodes: &[Node<'_>], block: usize) {
        // Otherwise it also holds for rows that miss one of its parts.
        if nodes.iter().any(|node| matches!(node, Token("OR" | "CASE"))) {
            return;
        }
        for part in nodes.split(|node| matches!(node, Token("AND"))) {
            match part {
                [Group(inner)] if !is_block(inner) => self.condition(inner, block),
                [Group(columns), Token("IN"), Group(values)] if has_parameter(values) => {
                    columns.iter().for_each(|node| self.bind(node, block));
                }
                _ => self.comparison(part, block),
            }
        }
    }

    fn comparison(&mut self, part: &[Node<'_>], block: usize) {
        let part = without_collation(part);
        match part[..] {
            [column, Token("IN" | "="), Group(values)] if has_parameter(values) => self.bind(column, block),
            [column, Token("="), Token("ANY" | "CAST"), Group(values)] if has_parameter(values) => {
                self.bind(column, block)
            }
            [column, Token("="), value] | [value, Token("="), column] if is_parameter(value) => {
                self.bind(column, block)
            }
            [Token(one), Token("="), Token(other)] => {
                self.equal.extend(self.resolve(one, block).zip(self.resolve(other, block)));
            }
            _ => {}
        }
    }

    fn bind(&mut self, column: &Node<'_>, block: usize) {
        if let Token(name) = column {
            self.bound.extend(self.resolve(name, block));
        }
    }

    /// The columns that a name stands for. One without a table is not looked for among several tables.
    fn resolve(&self, name: &str, block: usize) -> Option<ColumnUse> {
        let (alias, column) = name.split_once('.').map_or((None, name), |(alias, column)| (Some(alias), column));
        if !column.starts_with(char::is_alphabetic) {
            return None;
        }
        let mut within = Some(block);
        while let Some(number) = within {
            let is_it = |table: &TableUse| table.block == number && alias.is_none_or(|alias| alias == table.alias);
            let mut found: Vec<_> = (0..self.tables.len()).filter(|table| is_it(&self.tables[*table])).collect();
            if alias.is_none() && found.len() > 1 {
                found.retain(|table| !self.tables[*table].is_given);
            }
            match found[..] {
                [] => {}
                [table] => return Some((table, column.to_owned())),
                _ => return None,
            }
            within = self.blocks[number].parent;
        }
        None
    }

    /// Passes values on: from what the statement gives, through comparisons, to the columns of tables.
    fn close(&mut self) {
        let is_given = |(table, _): &ColumnUse| self.tables[*table].is_given;
        loop {
            let mut more = vec![];
            for (one, other) in self.joins() {
                if (is_given(one) || self.bound.contains(one)) && !self.bound.contains(other) {
                    more.push(other.clone());
                }
            }
            if more.is_empty() {
                return;
            }
            self.bound.extend(more);
        }
    }
}

/// The names that `WITH` gives to parts of the statement.
fn common_names<'a>(nodes: &[Node<'a>]) -> BTreeSet<&'a str> {
    if !word_is(nodes, 0, "WITH") {
        return BTreeSet::new();
    }
    let named = nodes.windows(3).filter_map(|three| match three {
        [Token(name), Token("AS"), Group(inner)] if is_block(inner) => Some(*name),
        _ => None,
    });
    named.collect()
}

fn is_block(nodes: &[Node<'_>]) -> bool {
    STARTS.contains(&word(nodes, 0))
}

fn is_parameter(node: &Node<'_>) -> bool {
    matches!(node, Token(word) if word.starts_with('$'))
}

fn has_parameter(nodes: &[Node<'_>]) -> bool {
    nodes.iter().any(|node| match node {
        Token(_) => is_parameter(node),
        Group(inner) => has_parameter(inner),
    })
}

fn without_collation<'n, 'a>(part: &'n [Node<'a>]) -> Vec<&'n Node<'a>> {
    let mut kept: Vec<&Node<'_>> = vec![];
    let mut nodes = part.iter();
    while let Some(node) = nodes.next() {
        match node {
            Token("COLLATE") => drop(nodes.next()),
            node => kept.push(node),
        }
    }
    kept
}

/// The word at this place. Empty if there is none.
fn word<'a>(nodes: &[Node<'a>], at: usize) -> &'a str {
    match nodes.get(at) {
        Some(Token(word)) => word,
        _ => "",
    }
}

fn word_is(nodes: &[Node<'_>], at: usize, expected: &str) -> bool {
    word(nodes, at) == expected
}

fn text(nodes: &[Node<'_>]) -> String {
    let words = nodes.iter().map(|node| match node {
        Token(word) => (*word).to_owned(),
        Group(inner) if is_block(inner) => "(…)".to_owned(),
        Group(inner) => format!("({})", text(inner)),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn tree<'a>(tokens: &mut impl Iterator<Item = &'a str>) -> Vec<Node<'a>> {
    let mut nodes = vec![];
    while let Some(token) = tokens.next() {
        match token {
            "(" => nodes.push(Group(tree(tokens))),
            ")" => return nodes,
            token => nodes.push(Token(token)),
        }
    }
    nodes
}

/// Words, texts in quotes, parameters, operators, commas and parentheses. Types of parameters (`$1::text[]`) are left out.
fn tokens(sql: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || "_.$".contains(c);
    let is_sign = |c: char| "<>=!|+-*/%~@?#&^".contains(c);
    let (mut tokens, mut rest) = (vec![], sql);
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '\'' => rest[1..].find('\'').map_or(rest.len(), |end| end + 2),
            '(' | ')' | ',' => 1,
            c if is_word(c) => rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()),
            c if is_sign(c) => rest.find(|c: char| !is_sign(c)).unwrap_or(rest.len()),
            ':' => {
                rest = rest.trim_start_matches(':').trim_start_matches(is_word);
                continue;
            }
            c => {
                rest = &rest[c.len_utf8()..];
                continue;
            }
        };
        tokens.push(&rest[..length]);
        rest = &rest[length..];
    }
    tokens
}
