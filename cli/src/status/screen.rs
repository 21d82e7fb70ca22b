//! Draws the live view of `mcr status --watch`. The picture depends only on the model, the time, the place in the
//! list and the size of the terminal.

use super::model::Model;
use super::view::{sections, summary};
use crate::output::{Paint, printable};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;
use std::time::Instant;

/// Maximum number of rows for groups that are committed or abandoned.
const RECENT_MAX: usize = 8;

/// How the view is drawn.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Whether words have colours.
    pub has_colours: bool,
    /// Number of lines above the first shown line. The picture has fewer lines above if the list is short.
    pub scroll: usize,
}

/// Draws the live view. Returns the part of the list that was drawn.
pub fn draw(frame: &mut Frame<'_>, model: &Model, now: Instant, look: Look) -> Drawn {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)]).areas(frame.area());
    let lines = lines(model, now, usize::from(body.width), look.has_colours);
    let (all, fitting) = (lines.len(), usize::from(body.height));
    let above = look.scroll.min(all.saturating_sub(fitting));
    let shown: Vec<Line<'_>> = lines.into_iter().skip(above).take(fitting).collect();
    let last = above + shown.len();
    frame.render_widget(Paragraph::new(format!("mcr status: {}", summary(model))), head);
    frame.render_widget(Paragraph::new(shown), body);
    let place = if all > fitting { format!("lines {} to {last} of {all}; ", above + 1) } else { String::new() };
    frame.render_widget(Paragraph::new(format!("{place}q: quit, arrows and page keys: move")), foot);
    Drawn { above, fitting }
}

/// The part of the list that was drawn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drawn {
    /// Number of lines above the first shown line.
    pub above: usize,
    /// Number of lines that fit.
    pub fitting: usize,
}

fn lines(model: &Model, now: Instant, width: usize, has_colours: bool) -> Vec<Line<'static>> {
    let mut lines = Vec::new();
    for section in sections(model, now, RECENT_MAX) {
        if !lines.is_empty() {
            lines.push(Line::default());
        }
        for line in section.table.pieces(width.max(1)) {
            let span = |(text, paint): (String, Option<Paint>)| match paint.filter(|_| has_colours) {
                Some(paint) => Span::styled(text, Style::new().fg(colour(paint))),
                None => Span::raw(text),
            };
            lines.push(Line::from_iter(line.into_iter().map(span)));
        }
        lines.extend(section.note.map(|note| Line::raw(printable(&note).into_owned())));
    }
    lines
}

fn colour(paint: Paint) -> Color {
    match paint {
        Paint::Good => Color::Green,
        Paint::Doubtful => Color::Yellow,
        Paint::Bad => Color::Red,
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::status;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::Duration;

    /// The lines of a terminal of this size, and the part of the list that was drawn.
    fn drawn(size: (u16, u16), model: &Model, now: Instant, scroll: usize) -> (Vec<String>, Drawn) {
        let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).expect("a terminal");
        let mut part = Drawn::default();
        let look = Look { has_colours: true, scroll };
        terminal.draw(|frame| part = draw(frame, model, now, look)).expect("drawn");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        ((0..size.1).map(line).collect(), part)
    }

    fn model(agents: u32, now: Instant) -> Model {
        let mut model = Model::default();
        model.add(&["agg0:7117".to_owned(), "agg1:7117".to_owned()], now);
        model.note("agg0:7117", Ok(status(agents)), now);
        model.note("agg1:7117", Ok(status(0)), now);
        model
    }

    #[test]
    fn the_picture_fits_80_by_24_and_200_by_50_and_has_a_head_and_a_foot() {
        let now = Instant::now();
        for size in [(80, 24), (200, 50)] {
            let (lines, _) = drawn(size, &model(3, now), now, 0);
            assert_eq!(lines[0], "mcr status: 2 aggregators; 3 agents", "{size:?}");
            assert!(lines.last().is_some_and(|line| line.contains("q: quit")), "{lines:#?}");
            let has = |part: &str| lines.iter().any(|line| line.contains(part));
            for part in ["agg0:7117", "answers", "100.00 MiB of 512.00 MiB", "[####......]  42 %", "waiting for rank 7"]
            {
                assert!(has(part), "{size:?}: {part}: {lines:#?}");
            }
            // On a wide terminal, the table has more columns.
            assert_eq!(has("/lustre/mcr"), size.0 == 200, "{lines:#?}");
            assert!(size.1 == 24 || has("n0002"), "{lines:#?}");
        }
    }

    #[test]
    fn a_dead_aggregator_has_a_row_with_the_time_in_red() {
        let start = Instant::now();
        let mut model = model(3, start);
        model.note("agg1:7117", Err("connection refused".into()), start + Duration::from_secs(2));
        let now = start + Duration::from_secs(12);
        let (lines, _) = drawn((80, 24), &model, now, 0);
        assert_eq!(lines[0], "mcr status: 2 aggregators, 1 does not answer; 3 agents");
        let row = lines.iter().find(|line| line.starts_with("agg1:7117")).expect("a row");
        assert!(row.contains("has not answered for 12 s") && row.contains("connection"), "{lines:#?}");
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).expect("a terminal");
        for (has_colours, expected) in [(true, Color::Red), (false, Color::Reset)] {
            let look = Look { has_colours, scroll: 0 };
            terminal.draw(|frame| _ = draw(frame, &model, now, look)).expect("drawn");
            let buffer = terminal.backend().buffer();
            let cell = buffer.content().iter().zip(0..).find(|(cell, _)| cell.symbol() == "d" && cell.fg == expected);
            assert!(cell.is_some(), "{expected}");
        }
    }

    #[test]
    fn a_list_of_500_agents_is_scrolled_to_its_last_line_and_not_further() {
        let now = Instant::now();
        let model = model(500, now);
        let (lines, top) = drawn((80, 24), &model, now, 0);
        assert_eq!((lines.len(), top), (24, Drawn { above: 0, fitting: 22 }));
        assert!(lines[23].starts_with("lines 1 to 22 of 5"), "{lines:#?}");
        let (lines, end) = drawn((80, 24), &model, now, usize::MAX);
        assert!(lines[22].starts_with("n0499") && lines[1].starts_with("n0478"), "{lines:#?}");
        let (_, middle) = drawn((80, 24), &model, now, end.above - 100);
        assert_eq!(middle.above, end.above - 100);
        // If the terminal grows, fewer lines are above the first shown line.
        let (lines, grown) = drawn((80, 60), &model, now, end.above);
        assert!(grown.above < end.above && lines[58].starts_with("n0499"), "{lines:#?}");
    }

    #[test]
    fn a_terminal_of_any_size_is_drawn_without_a_panic() {
        let now = Instant::now();
        let model = model(40, now);
        for width in [1, 2, 10, 33, 79, 300] {
            for height in [1, 2, 3, 10, 100] {
                let (lines, _) = drawn((width, height), &model, now, 7);
                assert_eq!(lines.len(), usize::from(height));
            }
        }
    }

    #[test]
    fn rows_are_bounded_and_names_cannot_change_the_terminal() {
        let now = Instant::now();
        let mut many = model(5000, now);
        let (lines, _) = drawn((80, 24), &many, now, usize::MAX);
        assert_eq!(lines[22], "and 3000 agents more", "{lines:#?}");
        let mut hostile = status(1);
        hostile.agents[0].node = "\u{1b}[2Jx".into();
        many.note("agg0:7117", Ok(hostile), now);
        let (lines, _) = drawn((80, 24), &many, now, usize::MAX);
        assert!(lines.iter().any(|line| line.starts_with("\\x1b[2Jx")), "{lines:#?}");
    }
}
