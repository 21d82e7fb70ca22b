//! Plain words for the errors of the parser of configuration files.

use super::nearest;

/// The message of the parser without the words of the programming language. An unknown message stays as it is.
pub fn plain_words(message: &str) -> String {
    let message = message.trim();
    let wrong = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    if let Some((found, expected)) = wrong.and_then(|rest| rest.rsplit_once(", expected ")) {
        return format!("the value is {}, and it must be {}", plain_value(found), plain_type(expected));
    }
    let unknown = message.strip_prefix("unknown variant `").and_then(|rest| rest.split_once("`, expected "));
    if let Some((word, known)) = unknown {
        let known: Vec<String> = known.split('`').skip(1).step_by(2).map(str::to_owned).collect();
        let near = nearest(word, &known).map_or(String::new(), |near| format!("; did you mean {near:?}?"));
        return format!("the word {word:?} is not known here, and the known words are {}{near}", known.join(", "));
    }
    message.to_owned()
}

/// A value of a configuration file, as the parser describes it.
fn plain_value(found: &str) -> String {
    let found = found.replace('`', "");
    let number = found.strip_prefix("integer ").or_else(|| found.strip_prefix("floating point "));
    match (number, found.strip_prefix("string "), found.strip_prefix("boolean ")) {
        (Some(number), ..) => format!("the number {number}"),
        (_, Some(text), _) => format!("the text {text}"),
        (.., Some(word)) => word.to_owned(),
        _ if found == "sequence" => "a list".to_owned(),
        _ if found == "map" => "a table".to_owned(),
        _ => found,
    }
}

/// A type, as the parser names it.
fn plain_type(expected: &str) -> &str {
    match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, at least 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "a nonzero u8" | "a nonzero u16" | "a nonzero u32" | "a nonzero u64" | "a nonzero usize" => {
            "a whole number, at least 1"
        }
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list in brackets",
        "a string" | "string" | "path string" => "a text in quotes",
        "a map" => "a table",
        expected if expected.starts_with("struct ") => "a table",
        expected => expected,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_the_parser_have_no_words_of_the_programming_language() {
        for (message, plain) in [
            (
                "invalid type: string \"four\", expected u32",
                "the value is the text \"four\", and it must be a whole number, at least 0",
            ),
            (
                "invalid value: integer `-1`, expected u32",
                "the value is the number -1, and it must be a whole number, at least 0",
            ),
            (
                "invalid type: string \"x\", expected a sequence",
                "the value is the text \"x\", and it must be a list in brackets",
            ),
            (
                "invalid type: integer `1`, expected a boolean",
                "the value is the number 1, and it must be true or false",
            ),
            (
                "unknown variant `awre`, expected one of `agnostic`, `aware`",
                "the word \"awre\" is not known here, and the known words are agnostic, aware; did you mean \
                 \"aware\"?",
            ),
            (
                "unknown variant `x`, expected `a` or `b`",
                "the word \"x\" is not known here, and the known words are a, b",
            ),
            ("string values must be quoted", "string values must be quoted"),
        ] {
            assert_eq!(plain_words(message), plain);
        }
    }
}
