//! What the table says about a key.

/// One key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name inside its block.
    pub name: &'static str,
    /// What its value may be.
    pub kind: Kind,
    /// The default as JSON text; `null` when it is unset.
    pub default: &'static str,
    /// Whether we do what it says.
    pub status: Status,
    /// Further values, as JSON text, that ask for nothing, besides the default.
    pub off: &'static [&'static str],
    /// Other names that are as good.
    pub aliases: &'static [&'static str],
    /// What `"auto"` becomes.
    pub auto: Auto,
    /// One line for people.
    pub doc: &'static str,
}

/// What a value may be.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `true` or `false`.
    Bool,
    /// A whole number between the two, both included.
    Int(i64, i64),
    /// A number between the two, both included.
    Float(f64, f64),
    /// A number above the first and up to the second.
    FloatAbove(f64, f64),
    /// A number of bytes, or a string with a unit such as `"24GiB"`.
    Bytes,
    /// Any string.
    Text,
    /// One string or a list of strings.
    Texts,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// Keys of its own.
    Block(&'static Block),
    /// `type` and `params`, whose keys depend on the type.
    Variants(&'static Variants),
    /// A list of between so many and so many of one kind.
    List(&'static Kind, usize, usize),
    /// Any names, each with a value of this kind.
    Map(&'static Kind),
    /// Any of these.
    Either(&'static [Kind]),
    /// Anything.
    Any,
}

/// A block of keys.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its keys.
    pub keys: &'static [Key],
    /// What turns it on.
    pub switch: Switch,
}

/// What turns a block on; while it is off, its keys ask for nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Switch {
    /// Nothing: each key speaks for itself.
    None,
    /// This key, when it has another value than its default.
    Key(&'static str),
    /// Being there.
    Presence,
}

/// What `type` may be, and the `params` of each.
#[derive(Clone, Copy, Debug)]
pub struct Variants {
    /// The word for one of them.
    pub what: &'static str,
    /// All of them.
    pub list: &'static [Variant],
    /// Keys beside `type` and `params`.
    pub beside: &'static [Key],
    /// Whether `type` is compared without regard to case.
    pub any_case: bool,
}

/// One `type`.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// Its name.
    pub name: &'static str,
    /// Whether it is built.
    pub status: Status,
    /// Its parameters.
    pub keys: &'static [Key],
    /// Whether parameters that are not listed are taken unseen: for classes of PyTorch that we only
    /// recognise.
    pub open: bool,
    /// One line for people.
    pub doc: &'static str,
}

/// Whether we do what a key says.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Status {
    /// Yes.
    Built,
    /// Not yet: anything but the default is an error with this reason.
    NotBuilt(&'static str),
    /// It changes nothing here, for this reason: accepted, and named in a note.
    NoEffect(&'static str),
    /// DeepSpeed removed it, or never allowed it: anything but the default is an error with this
    /// reason.
    Refused(&'static str),
    /// An old name of this sibling.
    Renamed(&'static str),
    /// An old switch: `true` sets this key (a path from the same block) to this JSON value.
    Means(&'static str, &'static str),
}

/// What `"auto"` becomes. The outer integrations that fill it for DeepSpeed are not here, so we
/// resolve it to a stated value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Auto {
    /// The default.
    Default,
    /// Left out, so that the batch equation derives it.
    Batch,
    /// So many tenths of the model's width, squared.
    WidthSquaredTenths(u64),
    /// Ten times the model's width.
    TenWidths,
    /// bf16 unless fp16 is on.
    PreferBf16,
    /// The optimizer's learning rate.
    LearningRate,
    /// 5e-5 for a model that starts from trained weights (what Hugging Face's trainer fills in),
    /// else the default.
    FineTuningRate,
    /// The run's steps.
    RunSteps,
    /// A tenth of the run's steps.
    TenthOfRun,
    /// Left to the planner, which knows the machine's memory.
    Planner,
}

const fn key(name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Key {
    let (off, aliases): (&[&str], &[&str]) = (&[], &[]);
    Key { name, kind, default, status: Status::Built, off, aliases, auto: Auto::Default, doc }
}

impl Key {
    /// A key of any kind.
    pub(super) const fn new(
        name: &'static str,
        kind: Kind,
        default: &'static str,
        doc: &'static str,
    ) -> Key {
        key(name, kind, default, doc)
    }

    /// A boolean, off unless given.
    pub(super) const fn off(name: &'static str, doc: &'static str) -> Key {
        key(name, Kind::Bool, "false", doc)
    }

    /// A boolean, on unless given.
    pub(super) const fn on(name: &'static str, doc: &'static str) -> Key {
        key(name, Kind::Bool, "true", doc)
    }

    /// A whole number, zero or more.
    pub(super) const fn count(name: &'static str, default: &'static str, doc: &'static str) -> Key {
        key(name, Kind::Int(0, i64::MAX), default, doc)
    }

    /// A whole number, one or more.
    pub(super) const fn positive(
        name: &'static str,
        default: &'static str,
        doc: &'static str,
    ) -> Key {
        key(name, Kind::Int(1, i64::MAX), default, doc)
    }

    /// A whole number from one up to a sane limit.
    pub(super) const fn up_to(
        name: &'static str,
        max: i64,
        default: &'static str,
        doc: &'static str,
    ) -> Key {
        key(name, Kind::Int(1, max), default, doc)
    }

    /// A number, zero or more.
    pub(super) const fn number(
        name: &'static str,
        default: &'static str,
        doc: &'static str,
    ) -> Key {
        key(name, Kind::Float(0.0, f64::MAX), default, doc)
    }

    /// A number between zero and one.
    pub(super) const fn share(name: &'static str, default: &'static str, doc: &'static str) -> Key {
        key(name, Kind::Float(0.0, 1.0), default, doc)
    }

    /// A string.
    pub(super) const fn text(name: &'static str, default: &'static str, doc: &'static str) -> Key {
        key(name, Kind::Text, default, doc)
    }

    /// One of a few words.
    pub(super) const fn choice(
        name: &'static str,
        words: &'static [&'static str],
        default: &'static str,
        doc: &'static str,
    ) -> Key {
        key(name, Kind::Choice(words), default, doc)
    }

    /// A block of keys.
    pub(super) const fn block(name: &'static str, block: &'static Block, doc: &'static str) -> Key {
        key(name, Kind::Block(block), "null", doc)
    }

    pub(super) const fn status(self, status: Status) -> Key {
        Key { status, ..self }
    }

    pub(super) const fn no_effect(self, why: &'static str) -> Key {
        Key { status: Status::NoEffect(why), ..self }
    }

    pub(super) const fn not_built(self, why: &'static str) -> Key {
        Key { status: Status::NotBuilt(why), ..self }
    }

    pub(super) const fn refused(self, why: &'static str) -> Key {
        Key { status: Status::Refused(why), ..self }
    }

    pub(super) const fn asks_nothing(self, off: &'static [&'static str]) -> Key {
        Key { off, ..self }
    }

    pub(super) const fn alias(self, aliases: &'static [&'static str]) -> Key {
        Key { aliases, ..self }
    }

    pub(super) const fn auto(self, auto: Auto) -> Key {
        Key { auto, ..self }
    }
}

impl Block {
    pub(super) const fn new(keys: &'static [Key]) -> Block {
        Block { keys, switch: Switch::None }
    }

    pub(super) const fn on_by_presence(keys: &'static [Key]) -> Block {
        Block { keys, switch: Switch::Presence }
    }

    pub(super) const fn switched(switch: &'static str, keys: &'static [Key]) -> Block {
        Block { keys, switch: Switch::Key(switch) }
    }
}

impl Key {
    /// The default, parsed.
    ///
    /// # Panics
    /// If the table holds a default that is not JSON; a test of the table checks all of them.
    #[must_use]
    pub fn default_value(&self) -> serde_json::Value {
        serde_json::from_str(self.default).expect("defaults in the table are JSON")
    }

    /// Whether a value asks for nothing: the default, or one of the values listed as off.
    #[must_use]
    pub fn asks_for_nothing(&self, value: &serde_json::Value) -> bool {
        let same = |text: &str| {
            serde_json::from_str(text).is_ok_and(|other: serde_json::Value| alike(&other, value))
        };
        same(self.default) || self.off.iter().any(|off| same(off))
    }
}

/// Equality that does not tell `1` from `1.0`.
fn alike(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

impl Kind {
    /// The kind in words: `a whole number of at least 1`.
    #[must_use]
    pub fn in_words(&self) -> String {
        match self {
            Kind::Bool => "true or false".to_owned(),
            Kind::Int(min, i64::MAX) => format!("a whole number of at least {min}"),
            Kind::Int(min, max) => format!("a whole number from {min} to {max}"),
            Kind::Float(min, max) if *min == f64::MIN && *max == f64::MAX => "a number".to_owned(),
            Kind::Float(min, f64::MAX) => format!("a number of at least {min}"),
            Kind::Float(min, max) => format!("a number from {min} to {max}"),
            Kind::FloatAbove(min, f64::MAX) => format!("a number above {min}"),
            Kind::FloatAbove(min, max) => format!("a number above {min} and up to {max}"),
            Kind::Bytes => "a number of bytes, or a string such as \"24GiB\"".to_owned(),
            Kind::Text => "a string".to_owned(),
            Kind::Texts => "a string or a list of strings".to_owned(),
            Kind::Choice(words) => quoted(words),
            Kind::Block(_) | Kind::Map(_) => "a block".to_owned(),
            Kind::Variants(v) => format!("a block with the {}'s \"type\" and \"params\"", v.what),
            Kind::List(item, min, max) if min == max => {
                format!("a list of {min}, each {}", item.in_words())
            }
            Kind::List(item, ..) => format!("a list, each {}", item.in_words()),
            Kind::Either(kinds) => {
                kinds.iter().map(Kind::in_words).collect::<Vec<_>>().join(", or ")
            }
            Kind::Any => "anything".to_owned(),
        }
    }
}

/// `"a", "b" or "c"`.
fn quoted(words: &[&str]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| format!("{w:?}")).collect();
    match quoted.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => quoted.concat(),
    }
}
