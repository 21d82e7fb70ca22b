//! `mcr layouts`: the presets of layouts, each with a file name as an example.

use crate::args::LayoutsArgs;
use crate::output::{Table, print_json};
use mcr_cnc::layout::Layout;
use mcrengine::ids::FilePath;
use std::process::ExitCode;

/// A preset.
#[derive(serde::Serialize)]
struct Preset {
    layout: &'static str,
    /// A file name of the preset.
    example: &'static str,
    /// The checkpoint to which the example belongs.
    checkpoint: String,
    /// The rank to which the example belongs. `None` if the example belongs to no single rank.
    rank: Option<u32>,
    patterns: Vec<String>,
}

pub fn run(args: LayoutsArgs) -> anyhow::Result<ExitCode> {
    let presets: Vec<Preset> = Layout::preset_names().filter_map(preset).collect();
    if args.json {
        print_json(&serde_json::json!({ "layouts": presets }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["layout", "~example of a file", "~checkpoint", ">rank"]);
    for Preset { layout, example, checkpoint, rank, .. } in presets {
        let rank = rank.map_or("-".to_owned(), |rank| rank.to_string());
        table.row([layout.to_owned(), example.to_owned(), checkpoint, rank]);
    }
    table.print_with(OTHERS)?;
    Ok(ExitCode::SUCCESS)
}

const OTHERS: &str = "
Use a layout like this: mcr save DIR --layout enzo. Other values of --layout:
  guess                       guess the layout from the names of the files
  single                      all files below DIR are one checkpoint
  'out_{checkpoint}.{rank}'   a pattern: out_100.3 is of checkpoint 100, rank 3
";

fn preset(name: &'static str) -> Option<Preset> {
    let layout = Layout::preset(name)?;
    let example = Layout::preset_example(name);
    let placed = layout.place(&FilePath::new(example.as_bytes()).ok()?)?;
    Some(Preset {
        layout: name,
        example,
        checkpoint: placed.checkpoint.to_string(),
        rank: placed.rank.map(|rank| rank.0),
        patterns: layout.patterns().map(str::to_owned).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_preset_is_listed_with_an_example_that_belongs_to_a_checkpoint() {
        for name in Layout::preset_names() {
            let preset = preset(name).unwrap_or_else(|| panic!("{name} has no example"));
            assert!(!preset.checkpoint.is_empty() && !preset.patterns.is_empty(), "{name}");
        }
    }
}
