// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Starts the ranks of a world as processes of this machine: belay-run -n 4 program arguments. It is their
// coordinator, and when one fails the others are told, have some time to report it, and are ended.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "belay/backend/host/bootstrap/bootstrap_socket.hpp"
#include "belay/backend/host/bootstrap/coordinator.hpp"
#include "belay/backend/host/bootstrap/world_monitor.hpp"
#include "belay/backend/host/failure/flight_dump.hpp"
#include "belay/backend/host/failure/watched_process.hpp"
#include "belay/backend/host/options.hpp"
#include "belay/core/error.hpp"
#include "belay/core/printable.hpp"
#include "belay/train/stop_request.hpp"
#include "tools/belay_run/child.hpp"
#include "tools/belay_run/guard.hpp"
#include "tools/belay_run/options.hpp"
#include "tools/belay_run/output.hpp"

namespace belay_run {

namespace {

using namespace belay::host;
using clock = std::chrono::steady_clock;

// The signals that are for the ranks; and the two by which a shell stops us and lets us go on.
constexpr int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
constexpr int stopping[] = {SIGTSTP, SIGCONT};

// What its ranks are told, where they join; programs that do not join ignore it.
world_options options_for(const options& with) {
  world_options out;
  out.timeout = std::chrono::duration<double>(with.timeout);
  out.stall_limit = std::chrono::duration<double>(with.stall);
  return checked_options(out, {});
}

// The world that may be joined, what the ranks print, signals, and how long ranks may run after a failure.
class started_world : public world_monitor {
 public:
  started_world(const options& with, const guard& after_us)
      : world_monitor(with.ranks, options_for(with)),
        with_(with),
        after_us_(&after_us),
        children_(static_cast<std::size_t>(with.ranks)),
        codes_(static_cast<std::size_t>(with.ranks)) {
    sigset_t ours;
    ::sigemptyset(&ours);
    for (int number : passed_on) ::sigaddset(&ours, number);
    for (int number : stopping) ::sigaddset(&ours, number);
    ::sigprocmask(SIG_BLOCK, &ours, &before_);
    // Whatever our parent had blocked: what we pass on shall reach the ranks.
    for (int number : passed_on) ::sigdelset(&before_, number);
    for (int number : stopping) ::sigdelset(&before_, number);
    ::signal(SIGPIPE, SIG_IGN);
    // Each rank takes a few descriptors of ours.
    ::getrlimit(RLIMIT_NOFILE, &files_);
    const rlimit most{files_.rlim_max, files_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &most);
    signals_.reset(::signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw belay::file_error("signalfd", 0, belay::error_text(errno));
  }

  /// Of the rank that caused the others' failure, where the world knows; else of the first that failed. Where none did
  /// and some stopped as asked, theirs.
  [[nodiscard]] int exit_code() const {
    if (refused_) return exit_code_;
    if (exit_code_ == 0 && stopped_) return belay::exit_code_of_a_stop;
    if (const belay::host::world_status* const world = failed()) {
      for (const int rank : world->cause().culprits) {
        const auto place = static_cast<std::size_t>(rank);
        if (place < codes_.size() && codes_[place] != 0) return codes_[place];
      }
    }
    return exit_code_;
  }
  [[nodiscard]] int living() const noexcept { return living_; }

  /// Starts all ranks. That the program cannot be started is told while they are served.
  void start_all(const bootstrap_socket& socket, coordinator& all) {
    for (int rank = 0; rank < with_.ranks; ++rank) {
      started_child made =
          start({rank, with_.ranks, socket.path(), socket.secret(), with_.timeout, with_.program, before_, files_});
      children_[static_cast<std::size_t>(rank)] = made.pid;
      after_us_->add(made.pid);
      ++living_;
      all.expect(rank, made.pid);
      reports_.push_back(std::move(made.report));
      readers_.emplace_back(std::move(made.out), rank, out_);
      readers_.emplace_back(std::move(made.error), rank, error_);
    }
  }

  // --- events of the coordinator

  // Programs that never join are no world: only when one joins it is told which others are gone already.
  void on_join(int rank, pid_t pid) override {
    world_monitor::on_join(rank, pid);
    any_joined_ = true;
    for (const auto& [gone, how] : std::exchange(gone_before_, {})) world_monitor::on_exit(gone, how);
  }
  void on_exit(int rank, exit_status how) override {
    if (any_joined_)
      world_monitor::on_exit(rank, how);
    else
      gone_before_.emplace_back(rank, how);
  }

  // Its exit status is then that of our signal.
  void on_stall(int rank) override {
    if (any_joined_) world_monitor::on_stall(rank);
    say(stall_text(rank, numbering::at_start));
    fail(rank, 128 + SIGSTOP);
  }

  void on_child_exit(int rank, exit_status how) override {
    after_us_->remove(std::exchange(children_[static_cast<std::size_t>(rank)], 0));
    --living_;
    const int code = how.how == exit_status::exit_kind::signalled ? 128 + how.code : how.code;
    if (code == belay::exit_code_of_a_stop) {  // no failure
      stopped_ = true;
      return;
    }
    if (code != 0 && exit_code_ == 0) say("rank " + std::to_string(rank) + " " + how.text());
    if (code != 0) fail(rank, code);
  }

  void add_poll_entries(std::vector<pollfd>& entries) override {
    entries.push_back({signals_.get(), POLLIN, 0});
    for (const outlet* to : {&out_, &error_}) entries.push_back({to->empty() ? -1 : to->file(), POLLOUT, 0});
    for (const unique_fd& one : reports_) entries.push_back({one.get(), POLLIN, 0});
    for (const line_reader& one : readers_) entries.push_back({one.to().full() ? -1 : one.file(), POLLIN, 0});
  }
  void on_poll(std::span<const pollfd> seen) override {
    if (seen[0].revents != 0) pass_signals_on();
    if (seen[1].revents != 0) out_.write_some();
    if (seen[2].revents != 0) error_.write_some();
    seen = seen.subspan(3);
    for (std::size_t i = 0; i < reports_.size(); ++i) {
      if (seen[i].revents != 0) read_start_report(reports_[i]);
    }
    seen = seen.subspan(reports_.size());
    for (std::size_t i = 0; i < readers_.size(); ++i) {
      if (seen[i].revents != 0) readers_[i].read_some();
    }
  }

  // --- when one has failed

  [[nodiscard]] time_point next_deadline() const noexcept { return next_signal_; }

  /// SIGTERM when the grace is over, SIGKILL when it is over once more.
  void tick() {
    if (clock::now() < next_signal_) return;
    next_signal_ = signals_sent_ == 0 ? clock::now() + duration_of(with_.grace) : time_point::max();
    const int number = signals_sent_++ == 0 ? SIGTERM : SIGKILL;
    std::string whom;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      if (children_[rank] != 0) whom += " " + std::to_string(rank);
    }
    say(std::string(number == SIGTERM ? "SIGTERM" : "SIGKILL") + " to ranks that still run:" + whom);
    signal_all(number);
    if (number == SIGTERM) signal_all(SIGCONT);  // a stopped one cannot end itself
  }

  /// To each rank and what it started; those that are reaped have no number any more.
  void signal_all(int number) const noexcept {
    for (const pid_t child : children_) {
      if (child != 0) ::kill(-child, number);
    }
  }

  /// After all processes are gone: what they had printed.
  void drain() {
    for (line_reader& one : readers_) {
      while (one.file() >= 0 && one.read_some()) {
        if (one.to().full()) (&one.to() == &out_ ? out_ : error_).write_all();
      }
      one.finish();
    }
    out_.write_all();
    error_.write_all();
  }

  /// Why the world stopped; said already with the name of a file, where one is asked for.
  void print_verdict() {
    const belay::host::world_status* const world = failed();
    if (world != nullptr && exit_code_ != 0 && !belay::flight_folder()) say(verdict(*world));
  }

  void say(const std::string& words) { error_.add("belay-run: " + belay::printable(words) + "\n"); }

 private:
  // A rank's first failure is its code, the first of all is ours; the others have some time to report what they know.
  void fail(int rank, int code) {
    int& own = codes_[static_cast<std::size_t>(rank)];
    if (own == 0) own = code;
    if (exit_code_ != 0) return;
    exit_code_ = code;
    next_signal_ = clock::now() + duration_of(with_.grace);
  }

  void read_start_report(unique_fd& report) {
    int cause = 0;
    const ssize_t got = ::read(report.get(), &cause, sizeof cause);
    if (got < 0 && errno == EINTR) return;
    report.reset();
    if (got != static_cast<ssize_t>(sizeof cause) || refused_) return;
    say(std::string(with_.program[0]) + ": " + std::strerror(cause));
    refused_ = true;
    exit_code_ = cause == ENOENT ? 127 : 126;
    signal_all(SIGKILL);
  }

  void pass_signals_on() {
    signalfd_siginfo what = {};
    while (::read(signals_.get(), &what, sizeof what) == static_cast<ssize_t>(sizeof what)) {
      const int number = static_cast<int>(what.ssi_signo);
      if (number == SIGTSTP)
        stop_until_continued();
      else
        signal_all(number);
    }
  }

  // Ctrl-Z. SIGCONT, which lets us go on, is then among our own signals, and passed on. Ranks are stopped and continued
  // in the same order, so that none sees another one stopped for as long as it was stopped itself.
  void stop_until_continued() {
    signal_all(SIGSTOP);
    const time_point before = clock::now();
    ::raise(SIGSTOP);
    if (next_signal_ != time_point::max()) next_signal_ += clock::now() - before;  // the ranks had no time either
  }

  options with_;
  const guard* after_us_;
  std::vector<pid_t> children_;  // 0: not started, or reaped
  std::vector<int> codes_;
  sigset_t before_;
  rlimit files_;
  unique_fd signals_;
  outlet out_{STDOUT_FILENO}, error_{STDERR_FILENO};
  std::vector<unique_fd> reports_;  // of those whose program has not begun
  std::deque<line_reader> readers_;
  bool stopped_ = false;  // a rank has saved its state and ended, as it was asked
  bool refused_ = false;  // the program could not be started
  bool any_joined_ = false;
  std::vector<std::pair<int, exit_status>> gone_before_;
  int living_ = 0;
  int exit_code_ = 0;
  int signals_sent_ = 0;
  time_point next_signal_ = time_point::max();
};

int run(const options& with) {
  keep_standard_streams();
  adopt_orphans();
  const guard after_us;
  bootstrap_socket socket = bootstrap_socket::open();
  started_world world(with, after_us);
  coordinator_options limits;
  limits.stall_limit = duration_of(with.stall);
  coordinator all(socket, with.ranks, world.first_control_block(), world, limits);
  world.start_all(socket, all);
  while (world.living() > 0) {
    all.step(world.next_deadline());
    world.tick();
  }
  socket.close();
  end_all_children();
  world.print_verdict();
  world.drain();
  return world.exit_code();
}

}  // namespace

}  // namespace belay_run

int main(int, char** arguments) {
  try {
    const belay_run::options with = belay_run::parse(arguments);
    if (with.help) {
      std::fputs(belay_run::help_text, stdout);
      return 0;
    }
    return belay_run::run(with);
  } catch (const belay::input_error& wrong) {
    std::fprintf(stderr, "belay-run: %s\n", belay::printable_what(wrong).c_str());
    return 2;
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "belay-run: %s\n", belay::printable_what(problem).c_str());
    belay_run::end_all_children();
    return 1;
  }
}
