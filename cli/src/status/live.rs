//! The live view of `mcr status --watch` on a terminal.

use super::args::StatusArgs;
use super::asking::ask_again_and_again;
use super::model::{Model, Shared, locked};
use super::screen::{Drawn, Look, draw};
use crate::advice::Advised;
use crate::output::has_colours;
use crate::signals::Signals;
use anyhow::Context;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers, poll, read};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time after which the picture is drawn again, so that the times and rates are current.
const DRAW_EVERY: Duration = Duration::from_millis(250);

/// Shows the view until the user ends it or a signal arrives. The terminal is restored at the end, also after an
/// error.
pub fn run(args: StatusArgs, model: Model) -> anyhow::Result<ExitCode> {
    let model: Shared = Arc::new(Mutex::new(model));
    let is_over = Arc::new(AtomicBool::new(false));
    let (asked, ended) = (Arc::clone(&model), Arc::clone(&is_over));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ask = move || {
        runtime.block_on(async {
            // Without handlers, a signal would end the process and leave the terminal as it is.
            match Signals::new() {
                Ok(mut signals) => tokio::select! {
                    () = ask_again_and_again(asked, args) => {}
                    () = signals.next() => ended.store(true, Ordering::Relaxed),
                },
                Err(_) => ask_again_and_again(asked, args).await,
            }
        });
    };
    // The thread ends with the process.
    std::thread::Builder::new().name("ask".into()).spawn(ask).context("starting a thread")?;
    let mut terminal = ratatui::try_init().context("the terminal cannot be used for a live view")?;
    let shown = show(&mut terminal, &model, &is_over);
    let restored = ratatui::try_restore().map_err(|error| {
        let what = format!("the terminal cannot be restored: {error}");
        anyhow::Error::from(Advised::new(what, "the command reset restores it"))
    });
    shown.and(restored).map(|()| ExitCode::SUCCESS)
}

fn show(terminal: &mut DefaultTerminal, model: &Shared, is_over: &AtomicBool) -> anyhow::Result<()> {
    let (mut look, mut drawn) = (Look { has_colours: has_colours(), scroll: 0 }, Drawn::default());
    while !is_over.load(Ordering::Relaxed) {
        let seen = locked(model).clone();
        // The library asks for the size of the terminal before it draws.
        terminal.draw(|frame| drawn = draw(frame, &seen, Instant::now(), look)).context("the terminal is gone")?;
        look.scroll = drawn.above;
        if !poll(DRAW_EVERY).context("the keyboard cannot be read")? {
            continue;
        }
        match read().context("the keyboard cannot be read")? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match place_after(key, drawn) {
                Some(scroll) => look.scroll = scroll,
                None => return Ok(()),
            },
            _ => {} // for example, the terminal has another size
        }
    }
    Ok(())
}

/// The number of lines above the first shown line after a key. `None`: the key ends the view.
fn place_after(key: KeyEvent, drawn: Drawn) -> Option<usize> {
    let Drawn { above, fitting } = drawn;
    let page = fitting.saturating_sub(1).max(1);
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => None,
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => None,
        KeyCode::Up | KeyCode::Char('k') => Some(above.saturating_sub(1)),
        KeyCode::Down | KeyCode::Char('j') => Some(above.saturating_add(1)),
        KeyCode::PageUp => Some(above.saturating_sub(page)),
        KeyCode::PageDown | KeyCode::Char(' ') => Some(above.saturating_add(page)),
        KeyCode::Home => Some(0),
        KeyCode::End => Some(usize::MAX),
        _ => Some(above),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_ctrl_c_end_the_view_and_other_keys_move_it() {
        let drawn = Drawn { above: 50, fitting: 22 };
        let after = |code, modifiers| place_after(KeyEvent::new(code, modifiers), drawn);
        assert_eq!(after(KeyCode::Char('q'), KeyModifiers::NONE), None);
        assert_eq!(after(KeyCode::Esc, KeyModifiers::NONE), None);
        assert_eq!(after(KeyCode::Char('c'), KeyModifiers::CONTROL), None);
        for (code, expected) in [
            (KeyCode::Char('c'), 50),
            (KeyCode::Up, 49),
            (KeyCode::Down, 51),
            (KeyCode::PageUp, 29),
            (KeyCode::PageDown, 71),
            (KeyCode::Home, 0),
            (KeyCode::End, usize::MAX),
        ] {
            assert_eq!(after(code, KeyModifiers::NONE), Some(expected), "{code:?}");
        }
    }
}
