// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// One execution of a few modelled threads over modelled memory. Before each operation that others can see, another
// thread may go on; each load may return an old value. Where the search has been is not gone through again.
#pragma once

#include <array>
#include <cstdint>
#include <cstdlib>
#include <source_location>
#include <string>
#include <vector>

#include "fakes/fiber.hpp"
#include "model/explorer/choices.hpp"
#include "model/explorer/memory.hpp"
#include "model/explorer/site.hpp"

namespace model {

/// How an execution ended.
enum class ended : std::uint8_t { well, pruned, wrong };

/// The facts that a scenario tells of its threads.
struct cast_list {
  int threads = 2;
  std::uint32_t daemons = 0;  // bit by thread: may be left waiting at the end
  std::uint32_t mortals = 0;  // bit by thread: one of these may die at any operation
};

class execution {
 public:
  static constexpr int unlimited = 255;

  choices decisions;
  visited states;
  mutant mistake;
  int bound = unlimited;  // on deviations: preemptions, and loads of a value that is not the last
  std::vector<site>* sites = nullptr;  // where all that are met are noted

  /// Begins: words made from now on are this execution's.
  void begin() {
    for (std::size_t i = 0; i < word_count_; ++i) words_[i].clear();
    word_count_ = 0;
    lock_ = value{};
    trace_.clear();
    failure_.clear();
    how_ = ended::well;
    deviations_ = 0;
    steps_ = 0;
    order_hash_ = 0;
    for (auto& one : threads_) one = thread{};
    current_ = none;
    sc_.fill(0);
  }
  /// Runs body(thread) for each thread.
  ended run(const cast_list& cast, void (*body)(void*, int), void* scenario) {
    cast_ = cast;
    body_ = body;
    scenario_ = scenario;
    may_die_ = cast.mortals != 0;
    for (int i = 0; i < cast.threads; ++i) {
      stacks_[at(i)].restart(&execution::enter);
      threads_[at(i)].id = mix(17, static_cast<std::uint64_t>(i));
    }
    running() = this;
    next_thread(false);
    running() = this;
    return how_;
  }

  // --- what the modelled types call, each from the current thread

  [[nodiscard]] int make_word(std::uint64_t bits) {
    if (word_count_ == words_.size()) std::abort();
    words_[word_count_].push_back({bits, mix(3, word_count_), {}});
    return static_cast<int>(word_count_++);
  }

  [[nodiscard]] std::uint64_t load(int word, std::memory_order order, const std::source_location& from) {
    (void)approach(site::of(from, act::load, order), order);
    const std::uint64_t bits = do_load(word, order);
    finish_late();
    return bits;
  }
  void store(int word, std::uint64_t bits, std::memory_order order, const std::source_location& from) {
    const mutant::mistake_kind how = approach(site::of(from, act::store, order), order);
    if (how == mutant::mistake_kind::omitted) return;
    if (how == mutant::mistake_kind::late) {
      postpone(word, bits, order, false);
      return;
    }
    do_store(word, bits, order);
    finish_late();
  }
  /// `change(old)` gives the new bits.
  template <class Change>
  [[nodiscard]] std::uint64_t exchange(int word, Change change, std::memory_order order, const std::source_location& from) {
    const mutant::mistake_kind how = approach(site::of(from, act::exchange, order), order);
    const std::uint64_t last = words_[at(word)].back().bits;
    if (how == mutant::mistake_kind::omitted) return last;
    if (how == mutant::mistake_kind::late) {
      postpone(word, change(last) - last, order, true);
      return last;
    }
    const std::uint64_t bits = do_exchange(word, change, order);
    finish_late();
    return bits;
  }
  [[nodiscard]] bool compare_exchange(int word, std::uint64_t& expected, std::uint64_t desired, std::memory_order order,
                                      std::memory_order failure, const std::source_location& from);

  /// The kernel: sleeps on a word unless it has changed. It looks behind a full barrier.
  void sleep(int word, std::uint64_t expected, const std::source_location& from) {
    finish_late();
    std::memory_order order = std::memory_order_seq_cst;
    if (approach(site::of(from, act::sleep, order), order) == mutant::mistake_kind::omitted) return;
    thread& me = threads_[at(current_)];
    me.now.join(lock_.known);
    me.id = mix(me.id, lock_.id);
    lock_.id = mix(lock_.id, me.id);
    if (do_load(word, std::memory_order_seq_cst) != expected) return;
    me.state = epoch_view::asleep;
    me.on = word;
    next_thread(true);
  }
  void wake_all(int word, const std::source_location& from) {
    std::memory_order order = std::memory_order_seq_cst;
    if (approach(site::of(from, act::wake, order), order) == mutant::mistake_kind::omitted) return;
    thread& me = threads_[at(current_)];
    me.now.join(lock_.known);
    lock_.known.join(me.now);
    me.id = mix(me.id, lock_.id);
    lock_.id = mix(lock_.id, me.id);
    for (thread& other : threads_) {
      if (other.state == epoch_view::asleep && other.on == word) other.state = epoch_view::ready;
    }
    finish_late();
  }
  /// Gives the core away until a word that was read since the last time has changed.
  void yield() {
    finish_late();
    thread& me = threads_[at(current_)];
    me.state = epoch_view::waiting;
    next_thread(true);
    for (int word = 0; word < static_cast<int>(word_count_); ++word) {
      if ((me.looked >> word & 1) == 0) continue;
      me.now.seen[at(word)] = static_cast<std::uint8_t>(words_[at(word)].size() - 1);
      me.id = mix(me.id, words_[at(word)].back().id);
    }
    me.looked = 0;
  }
  /// Stores that were streamed before are ordered before later stores of this thread.
  void streaming_fence(const std::source_location& from) {
    std::memory_order order = std::memory_order_seq_cst;
    if (approach(site::of(from, act::streaming_fence, order), order) == mutant::mistake_kind::omitted) return;
    threads_[at(current_)].now.clock[streaming(current_)] = threads_[at(current_)].streamed;
  }
  /// One of `count`, decided by the search.
  [[nodiscard]] int pick(int count) {
    const int drawn = count > 1 ? decisions.choose(count) : 0;
    threads_[at(current_)].id = mix(threads_[at(current_)].id, static_cast<std::uint64_t>(drawn));
    return drawn;
  }

  /// Plain memory: when it was accessed last, and by which thread.
  struct accesses {
    int writer = none;
    std::uint16_t written = 0;
    bool by_streaming = false;
    std::array<std::uint16_t, most_threads> read{};
  };
  void plain_read(accesses& of, const char* what) {
    if (current_ == none) return;
    check_write(of, what, "reads");
    of.read[at(current_)] = tick();
  }
  void plain_write(accesses& of, const char* what, bool by_streaming) {
    if (current_ == none) return;
    check_write(of, what, "writes");
    const thread& me = threads_[at(current_)];
    for (int q = 0; q < cast_.threads; ++q) {
      if (q != current_ && of.read[at(q)] > me.now.clock[at(q)]) {
        fail("race: thread " + std::to_string(current_) + " writes " + what + " while thread " + std::to_string(q) + " reads it");
      }
    }
    of.writer = current_;
    of.by_streaming = by_streaming;
    of.written = by_streaming ? ++threads_[at(current_)].streamed : tick();
    of.read.fill(0);
  }

  /// An invariant does not hold: the execution ends here.
  void fail(const std::string& why) {
    if (how_ != ended::wrong) failure_ = why;
    how_ = ended::wrong;
    if (current_ != none) abandon();
  }
  void expect(bool holds, const char* why) {
    if (!holds) fail(why);
  }

  [[nodiscard]] ended how() const noexcept { return how_; }
  [[nodiscard]] int current() const noexcept { return current_; }
  [[nodiscard]] bool has_died(int who) const noexcept { return threads_[at(who)].state == epoch_view::dead; }
  /// The word that turns 1 when a mortal thread dies.
  void tell_death_by(int who, int word) noexcept { threads_[at(who)].death = word; }
  [[nodiscard]] const std::string& failure() const noexcept { return failure_; }
  [[nodiscard]] std::string trace() const {
    std::string out;
    for (const auto& [who, where] : trace_) out += "  thread " + std::to_string(who) + ": " + where.text() + "   " + where.code() + "\n";
    return out;
  }

  /// The execution in which the caller is.
  [[nodiscard]] static execution*& running() noexcept {
    static execution* now = nullptr;
    return now;
  }

 private:
  enum class epoch_view : std::uint8_t { ready, asleep, waiting, over, dead };
  static constexpr int none = -1;
  static constexpr int most_steps = 3000;

  struct thread {
    view now;
    std::uint64_t id = 0;
    std::uint64_t looked = 0;  // words read since it last gave its core away
    std::uint16_t streamed = 0;
    epoch_view state = epoch_view::ready;
    int on = 0;
    int death = none;
    struct {
      bool any = false;
      int word = 0;
      std::uint64_t bits = 0;
      std::memory_order order{};
      bool adds = false;
      int after = 0;
    } late;
  };

  [[nodiscard]] static std::size_t at(int i) noexcept { return static_cast<std::size_t>(i); }
  [[nodiscard]] static std::size_t streaming(int who) noexcept { return static_cast<std::size_t>(most_threads + who); }
  [[nodiscard]] std::uint16_t tick() noexcept {
    auto& clock = threads_[at(current_)].now.clock[at(current_)];
    return ++clock;
  }
  void check_write(const accesses& of, const char* what, const char* does) {
    if (of.writer == none || of.writer == current_) return;
    const thread& me = threads_[at(current_)];
    if (me.now.clock[of.by_streaming ? streaming(of.writer) : at(of.writer)] >= of.written) return;
    fail("race: thread " + std::to_string(current_) + " " + does + " " + what + " while thread " +
         std::to_string(of.writer) + (of.by_streaming ? " streams" : " writes") + " it");
  }

  void note(const site& where) {
    if (sites == nullptr) return;
    for (const site& known : *sites) {
      if (known == where) return;
    }
    sites->push_back(where);
  }

  // Before an operation: others may go on here. Says what the seeded mistake does to it.
  mutant::mistake_kind approach(const site& where, std::memory_order& order) {
    if (++steps_ > most_steps) fail("livelock: no end after 3000 operations");
    next_thread(false);
    note(where);
    trace_.push_back({current_, where});
    thread& me = threads_[at(current_)];
    me.id = mix(me.id, (static_cast<std::uint64_t>(where.line) << 8) + where.column);
    if (mistake.how == mutant::mistake_kind::none || !(mistake.where == where)) return mutant::mistake_kind::none;
    if (mistake.how == mutant::mistake_kind::weaker) order = mistake.to;
    return mistake.how;
  }

  [[nodiscard]] std::size_t floor_of(int word, std::memory_order order) const noexcept {
    std::uint8_t floor = threads_[at(current_)].now.seen[at(word)];
    if (order == std::memory_order_seq_cst) floor = std::max(floor, sc_[at(word)]);
    return floor;
  }
  void read(thread& me, int word, std::size_t index, std::memory_order order) {
    const value& got = words_[at(word)][index];
    me.now.seen[at(word)] = std::max(me.now.seen[at(word)], static_cast<std::uint8_t>(index));
    if (acquires(order)) me.now.join(got.known);
    if (order == std::memory_order_seq_cst) raise_sc(word, index);
    me.looked |= std::uint64_t{1} << word;
    me.id = mix(me.id, got.id);
  }
  std::uint64_t do_load(int word, std::memory_order order) {
    const std::size_t newest = words_[at(word)].size() - 1;
    const std::size_t floor = floor_of(word, order);
    const bool may_deviate = deviations_ < bound || decisions.by_chance();
    const auto age = newest > floor && may_deviate
                         ? static_cast<std::size_t>(decisions.choose(static_cast<int>(newest - floor) + 1))
                         : 0;
    deviations_ += age != 0;
    read(threads_[at(current_)], word, newest - age, order);
    return words_[at(word)][newest - age].bits;
  }
  void do_store(int word, std::uint64_t bits, std::memory_order order) {
    thread& me = threads_[at(current_)];
    append(me, word, bits, order, view{});
  }
  template <class Change>
  std::uint64_t do_exchange(int word, Change change, std::memory_order order) {
    thread& me = threads_[at(current_)];
    const value last = words_[at(word)].back();
    me.id = mix(me.id, last.id);
    if (acquires(order)) me.now.join(last.known);
    append(me, word, change(last.bits), order, last.known);
    return last.bits;
  }
  void append(thread& me, int word, std::uint64_t bits, std::memory_order order, const view& inherited);
  void raise_sc(int word, std::size_t index) {
    if (sc_[at(word)] >= index) return;
    order_hash_ -= mix(at(word) + 1000, sc_[at(word)]);
    sc_[at(word)] = static_cast<std::uint8_t>(index);
    order_hash_ += mix(at(word) + 1000, index);
  }

  void postpone(int word, std::uint64_t bits, std::memory_order order, bool adds) {
    finish_late();
    auto& late = threads_[at(current_)].late;
    late.any = true;
    late.word = word;
    late.bits = bits;
    late.order = order;
    late.adds = adds;
  }
  void finish_late();

  [[nodiscard]] bool can_run(const thread& one) const noexcept {
    if (one.state == epoch_view::ready) return true;
    if (one.state != epoch_view::waiting) return false;
    for (std::size_t word = 0; word < word_count_; ++word) {
      if ((one.looked >> word & 1) != 0 && one.now.seen[word] + 1U < words_[word].size()) return true;
    }
    return false;
  }

  // The current thread stands before an operation, or cannot or need not go on: which thread is next?
  void next_thread(bool gives_way);

  [[nodiscard]] std::uint64_t state_hash(bool gives_way) const noexcept {
    std::uint64_t out = mix(order_hash_, lock_.id);
    out = mix(out, static_cast<std::uint64_t>(current_ + 1) * 2 + gives_way);
    for (int q = 0; q < cast_.threads; ++q) out = mix(mix(out, threads_[at(q)].id), static_cast<std::uint64_t>(threads_[at(q)].state));
    return mix(out, may_die_);
  }

  void die(int who, bool gives_way);
  void finish();
  // Back to where the execution was run from; no modelled thread goes on.
  void abandon() {
    if (current_ == none) return;
    fakes::fiber& left = stacks_[at(current_)];
    current_ = none;
    main_.resume(left);
  }
  static void enter() {
    execution& self = *running();
    self.body_(self.scenario_, self.current_);
    self.finish_late();
    self.threads_[at(self.current_)].state = epoch_view::over;
    self.next_thread(true);
  }

  std::array<std::vector<value>, most_words> words_;
  std::size_t word_count_ = 0;
  std::array<std::uint8_t, most_words> sc_{};  // of each word, what sequentially consistent accesses have seen
  std::array<thread, most_threads> threads_;
  std::array<fakes::fiber, most_threads> stacks_;
  fakes::fiber main_;
  value lock_;  // of the kernel's table of sleepers
  cast_list cast_;
  void (*body_)(void*, int) = nullptr;
  void* scenario_ = nullptr;
  int current_ = none;
  int deviations_ = 0;
  int steps_ = 0;
  bool may_die_ = false;
  std::uint64_t order_hash_ = 0;
  ended how_ = ended::well;
  std::string failure_;
  struct step {
    int who;
    site where;
  };
  std::vector<step> trace_;
};

}  // namespace model

#include "model/explorer/scheduling.hpp"  // IWYU pragma: export
