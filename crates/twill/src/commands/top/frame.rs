//! One frame of `top`: what is known, as lines; and where a person looks.

use std::time::Duration;

use ratatui::Frame as Screen;
use ratatui::crossterm::event::KeyCode;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Clear, Paragraph};

use crate::bytes;
use crate::overview::{MemberRates, Rates, Shown};
use crate::plain::plain;
use crate::status::{ArrayStatus, MemberHealth, MemberStatus, RebuildStatus};
use crate::words::advice::Urgency;
use crate::words::status::{headline, member_state, rebuild};
use crate::words::time;

/// Events of each array that are shown.
const EVENTS: usize = 6;

/// Letters of a bar of progress.
const BAR: usize = 30;

const KEYS: &str = "q quit   ↑ ↓ PgUp PgDn Home End scroll   ← → next array   ? keys";

const HELP: &str = "q, Esc, Ctrl-C   end
↑ ↓              a line up or down
PgUp PgDn        a page up or down
Home End         to the first or last line
← → Tab          to the array before or after
?                this help

read/s, write/s  bytes at the member, those of a rebuild or check too
latency          average of the member's recent reads and writes
half, 99 %       of clients' requests since the last look took less";

/// What is known of all arrays.
pub struct Frame {
    pub arrays: Vec<Shown>,
    /// Servers that do not answer, each in words.
    pub troubles: Vec<String>,
}

/// Where a person looks.
#[derive(Debug, Default)]
pub struct Position {
    line: usize,
    /// Lines on the screen, and in all, when it was last drawn.
    height: usize,
    lines: usize,
    /// First lines of the arrays.
    starts: Vec<usize>,
    help: bool,
}

impl Position {
    /// Obeys a key.
    pub fn press(&mut self, key: KeyCode) {
        if std::mem::take(&mut self.help) {
            return;
        }
        let last = self.lines.saturating_sub(self.height);
        self.line = match key {
            KeyCode::Up | KeyCode::Char('k') => self.line.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.line + 1,
            KeyCode::PageUp => self.line.saturating_sub(self.height.max(1)),
            KeyCode::PageDown | KeyCode::Char(' ') => self.line + self.height.max(1),
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Left | KeyCode::BackTab => {
                self.starts.iter().rev().find(|start| **start < self.line).copied().unwrap_or(0)
            }
            KeyCode::Right | KeyCode::Tab => {
                self.starts.iter().find(|start| **start > self.line).copied().unwrap_or(self.line)
            }
            KeyCode::Char('?' | 'h') => {
                self.help = true;
                self.line
            }
            _ => self.line,
        }
        .min(last);
    }
}

impl Frame {
    /// Without colours, for a script.
    pub fn text(&self) -> String {
        let (lines, _) = self.lines();
        let plain_line = |line: &Line<'_>| line.to_string().trim_end().to_owned() + "\n";
        lines.iter().map(plain_line).collect()
    }

    /// On a terminal.
    pub fn draw(&self, screen: &mut Screen<'_>, position: &mut Position) {
        let [body, keys] = Layout::vertical([Constraint::Min(1), Constraint::Length(1)]).areas(screen.area());
        let (lines, starts) = self.lines();
        (position.lines, position.starts, position.height) = (lines.len(), starts, usize::from(body.height));
        position.line = position.line.min(position.lines.saturating_sub(position.height));
        let scroll = u16::try_from(position.line).unwrap_or(u16::MAX);
        screen.render_widget(Paragraph::new(Text::from(lines)).scroll((scroll, 0)), body);
        let more = match position.lines.saturating_sub(position.line + position.height) {
            0 => String::new(),
            below => format!("   {below} lines below"),
        };
        screen.render_widget(Paragraph::new(format!("{KEYS}{more}")).style(faint()), keys);
        if position.help {
            let help = Paragraph::new(HELP).block(Block::bordered().title(" Keys, and what is shown "));
            let (width, height) = (74.min(body.width), 13.min(body.height));
            let middle = body.centered(Constraint::Length(width), Constraint::Length(height));
            screen.render_widget(Clear, middle);
            screen.render_widget(help, middle);
        }
    }

    /// All lines, and where each array begins.
    fn lines(&self) -> (Vec<Line<'static>>, Vec<usize>) {
        let (mut lines, mut starts) = (Vec::new(), Vec::new());
        for trouble in &self.troubles {
            lines.push(Line::styled(plain(trouble).into_owned(), bad()));
        }
        if self.arrays.is_empty() && self.troubles.is_empty() {
            lines.push(Line::from("no array is served any more"));
        }
        for shown in &self.arrays {
            if !lines.is_empty() {
                lines.push(Line::default());
            }
            starts.push(lines.len());
            array(shown, &mut lines);
        }
        (lines, starts)
    }
}

fn array(Shown { now, rates }: &Shown, lines: &mut Vec<Line<'static>>) {
    let status = &now.status;
    let style = match () {
        () if status.failed || status.failing => bad(),
        () if status.degraded => warn(),
        () => good(),
    };
    let style = style.add_modifier(Modifier::BOLD);
    let title = format!("{}, {}", headline(status), bytes::human(status.size_bytes));
    lines.push(Line::styled(title, style));
    lines.push(clients(status, rates.as_ref()));
    lines.extend(status.all_works().map(progress));
    lines.push(Line::default());
    let slots = format!(
        "  {:<5} {:<24} {:>11} {:>11} {:>17}  {}",
        "slot", "state", "read/s", "write/s", "latency r/w", "device"
    );
    lines.push(Line::styled(slots, faint()));
    for (at, of) in status.members.iter().enumerate() {
        // Of a zoned array members' speeds are not measured.
        let rates = rates.as_ref().filter(|_| status.zoned.is_none());
        lines.push(member(of, rates.and_then(|rates| rates.members.get(at)).copied()));
    }
    if !now.advice.is_empty() {
        lines.push(Line::default());
        for advice in &now.advice {
            let style = match advice.urgency {
                Urgency::Failed => bad(),
                Urgency::Degraded => warn(),
                Urgency::Notice => Style::new(),
            };
            lines.push(Line::styled(format!("  ! {}", plain(&advice.text)), style));
            lines
                .extend(advice.command.iter().map(|command| Line::from(format!("      {}", plain(command)))));
        }
    }
    if !now.events.is_empty() {
        lines.push(Line::default());
        for event in now.events.iter().take(EVENTS) {
            let when = time::seconds(event["unix_ms"].as_u64().unwrap_or(0) / 1000);
            let text = event["text"].as_str().or_else(|| event["event"].as_str()).unwrap_or_default();
            lines.push(Line::from(vec![
                Span::styled(format!("  {when}  "), faint()),
                Span::raw(plain(text).into_owned()),
            ]));
        }
    }
}

fn clients(status: &ArrayStatus, rates: Option<&Rates>) -> Line<'static> {
    let connected: u64 = status.exports.iter().map(|export| export.connections).sum();
    let words = match rates {
        None => "  measuring".to_owned(),
        Some(Rates { read_bytes, write_bytes, reads, writes, p50_ns, p99_ns, .. }) => format!(
            "  read {}/s ({reads}/s)   write {}/s ({writes}/s)   half < {}   99 % < {}   {connected} connected",
            bytes::human(*read_bytes),
            bytes::human(*write_bytes),
            duration(*p50_ns),
            duration(*p99_ns)
        ),
    };
    Line::from(words)
}

fn progress(work: &RebuildStatus) -> Line<'static> {
    let slot = work.slot.map_or_else(String::new, |slot| format!(" of slot {slot}"));
    let name = format!("  {}{slot} ", rebuild(work.kind));
    if work.pending {
        return Line::styled(name + "waits", warn());
    }
    let share = work.fraction().clamp(0.0, 1.0);
    let full = (share * BAR as f64).floor() as usize;
    let left = work.seconds_left().map_or_else(String::new, |seconds| {
        let left = humantime::format_duration(Duration::from_secs(seconds));
        format!(", {}/s, {left} left", bytes::human(work.bytes_per_s))
    });
    let bar = "=".repeat(full) + &" ".repeat(BAR - full);
    Line::from(format!("{name}[{bar}] {:.1} %{left}", share * 100.0))
}

fn member(member: &MemberStatus, rates: Option<MemberRates>) -> Line<'static> {
    let slot = member.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string());
    let style = match member.state {
        MemberHealth::InSync => good(),
        MemberHealth::Recovering | MemberHealth::Replacing => warn(),
        MemberHealth::Spare => Style::new(),
        MemberHealth::Failed | MemberHealth::Missing => bad(),
    };
    let works = matches!(member.state, MemberHealth::InSync | MemberHealth::Recovering);
    let per_s = |of: fn(&MemberRates) -> u64| {
        rates.filter(|_| works).map_or_else(String::new, |rates| bytes::human(of(&rates)))
    };
    let latency = match works && member.read_latency_ns + member.write_latency_ns > 0 {
        true => format!("{} / {}", duration(member.read_latency_ns), duration(member.write_latency_ns)),
        false => String::new(),
    };
    let troubles = [
        (member.errors, "errors"),
        (member.corrected_reads, "reads corrected"),
        (member.bad_block_bytes, "bytes bad"),
    ];
    let said = troubles.iter().filter(|(count, _)| *count > 0);
    let trouble: String = said.map(|(count, words)| format!(", {count} {words}")).collect();
    let device = member.path.as_deref().map_or_else(|| "none".into(), plain);
    Line::from(vec![
        Span::raw(format!("  {slot:<5} ")),
        Span::styled(format!("{:<24}", member_state(member)), style),
        Span::raw(format!(
            " {:>11} {:>11} {latency:>17}  {device}",
            per_s(|rates| rates.read_bytes),
            per_s(|rates| rates.write_bytes)
        )),
        Span::styled(trouble, bad()),
    ])
}

/// `–`, `820 ns`, `85.0 us`, `1.20 ms`, `3.00 s`.
fn duration(ns: u64) -> String {
    let in_unit = |unit: f64, name: &str| {
        let value = ns as f64 / unit;
        let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
        format!("{value:.digits$} {name}")
    };
    match ns {
        0 => "–".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => in_unit(1e3, "us"),
        1_000_000..1_000_000_000 => in_unit(1e6, "ms"),
        _ => in_unit(1e9, "s"),
    }
}

fn good() -> Style {
    Style::new().fg(Color::Green)
}

fn warn() -> Style {
    Style::new().fg(Color::Yellow)
}

fn bad() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overview::Overview;
    use crate::words::advice;
    use layout::units::Slot;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn shown(name: &str) -> Shown {
        let member = |(slot, state)| MemberStatus {
            slot: Some(slot),
            path: Some(format!("/dev/nvme{slot}n1")),
            state,
            ..MemberStatus::default()
        };
        let states = [MemberHealth::InSync, MemberHealth::Failed];
        let status = ArrayStatus {
            name: name.into(),
            level: "raid1".into(),
            raid_devices: 2,
            degraded: true,
            members: Slot::all().zip(states).map(member).collect(),
            ..ArrayStatus::default()
        };
        let rates = Rates { read_bytes: 3 << 20, p99_ns: 1_500_000, ..Rates::default() };
        Shown { rates: Some(rates), now: Overview::new(0, status, Vec::new(), Vec::new()) }
    }

    #[test]
    fn a_frame_says_what_is_the_matter() {
        let frame =
            Frame { arrays: vec![shown("store")], troubles: vec!["/run/x.sock: hangs\u{1b}[2J".into()] };
        let text = frame.text();
        for words in [
            "store: raid1 [2/1] [U_]",
            "read 3 MiB/s",
            "99 % < 1.50 ms",
            "faulty",
            "/dev/nvme1n1",
            "twill remove",
        ] {
            assert!(text.contains(words), "no {words} in\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "what a terminal obeys");
        assert_eq!(advice::advice(&frame.arrays[0].now.status).len(), 1);
    }

    #[test]
    fn keys_move_over_the_lines() {
        let frame = Frame { arrays: vec![shown("first"), shown("second")], troubles: Vec::new() };
        let mut terminal = Terminal::new(TestBackend::new(100, 8)).expect("a terminal of memory");
        let mut position = Position::default();
        let mut see = |key: Option<KeyCode>| {
            key.into_iter().for_each(|key| position.press(key));
            terminal.draw(|screen| frame.draw(screen, &mut position)).expect("drawn");
            terminal.backend().to_string()
        };
        assert!(see(None).contains("first: raid1"));
        assert!(see(Some(KeyCode::Right)).contains("second: raid1"));
        assert!(see(Some(KeyCode::Left)).contains("first: raid1"));
        assert!(!see(Some(KeyCode::Down)).contains("first: raid1"));
        assert!(see(Some(KeyCode::End)).contains("twill remove --array second"));
        assert!(see(Some(KeyCode::Home)).contains("first: raid1"));
        assert!(see(Some(KeyCode::Char('?'))).contains("Keys, and what is shown"));
        assert!(!see(Some(KeyCode::Down)).contains("Keys, and what is shown"), "any key closes the help");
    }
}
