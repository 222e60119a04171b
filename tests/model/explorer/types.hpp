// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What the code under test is given instead of the machine: atomics, the kernel's sleep, plain memory whose races are
// reported.
#pragma once

#include <atomic>
#include <cstdint>
#include <source_location>
#include <type_traits>

#include "model/explorer/execution.hpp"

namespace model {

using here = std::source_location;

[[nodiscard]] inline execution& now() noexcept { return *execution::running(); }

template <class T>
class atomic {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);

 public:
  atomic(T initial = T{}) : word_(now().make_word(bits_of(initial))) {}
  atomic(const atomic&) = delete;
  atomic& operator=(const atomic&) = delete;

  [[nodiscard]] T load(std::memory_order order = std::memory_order_seq_cst,
                       here from = here::current()) const noexcept {
    return value_of(now().load(word_, order, from));
  }
  void store(T value, std::memory_order order = std::memory_order_seq_cst, here from = here::current()) noexcept {
    now().store(word_, bits_of(value), order, from);
  }
  T exchange(T value, std::memory_order order = std::memory_order_seq_cst, here from = here::current()) noexcept {
    return value_of(now().exchange(
        word_, [&](std::uint64_t) { return bits_of(value); }, order, from));
  }
  T fetch_add(T more, std::memory_order order = std::memory_order_seq_cst, here from = here::current()) noexcept {
    const auto add = [&](std::uint64_t old) { return bits_of(static_cast<T>(value_of(old) + more)); };
    return value_of(now().exchange(word_, add, order, from));
  }
  T fetch_sub(T less, std::memory_order order = std::memory_order_seq_cst, here from = here::current()) noexcept {
    const auto subtract = [&](std::uint64_t old) { return bits_of(static_cast<T>(value_of(old) - less)); };
    return value_of(now().exchange(word_, subtract, order, from));
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order = std::memory_order_seq_cst,
                               here from = here::current()) noexcept {
    const std::memory_order failure = order == std::memory_order_acq_rel   ? std::memory_order_acquire
                                      : order == std::memory_order_release ? std::memory_order_relaxed
                                                                           : order;
    return compare_exchange_strong(expected, desired, order, failure, from);
  }
  bool compare_exchange_strong(T& expected, T desired, std::memory_order order, std::memory_order failure,
                               here from = here::current()) noexcept {
    std::uint64_t found = bits_of(expected);
    if (now().compare_exchange(word_, found, bits_of(desired), order, failure, from)) return true;
    expected = value_of(found);
    return false;
  }
  [[nodiscard]] int word() const noexcept { return word_; }

 private:
  [[nodiscard]] static std::uint64_t bits_of(T value) noexcept { return static_cast<std::uint64_t>(value); }
  [[nodiscard]] static T value_of(std::uint64_t bits) noexcept { return static_cast<T>(bits); }

  int word_;
};

struct atomics {
  template <class T>
  using atomic = model::atomic<T>;
  static void relax() noexcept {}
  static void yield() noexcept { now().yield(); }
};

/// The kernel's sleep. A slice never ends: a thread that relies on its end is reported as a deadlock.
struct kernel {
  template <class Word>
  static void sleep(Word& word, std::uint32_t expected, long /*slice*/, here from = here::current()) noexcept {
    now().sleep(word.word(), expected, from);
  }
  template <class Word>
  static void wake_all(Word& word, here from = here::current()) noexcept {
    now().wake_all(word.word(), from);
  }
};

/// Plain memory: two accesses, one of them a write, that are not ordered are a race.
template <class T>
class plain {
 public:
  plain(const char* name = "plain memory", T initial = T{}) noexcept : name_(name), value_(initial) {}
  plain(const plain&) = delete;
  plain& operator=(const plain&) = delete;

  [[nodiscard]] T read() const {
    now().plain_read(accesses_, name_);
    return value_;
  }
  void write(T value) {
    now().plain_write(accesses_, name_, false);
    value_ = value;
  }
  /// By a store that goes around the caches: no other thread may rely on it before a streaming fence.
  void stream(T value) {
    now().plain_write(accesses_, name_, true);
    value_ = value;
  }

 private:
  const char* name_;
  T value_;
  mutable execution::accesses accesses_;
};

inline void order_streaming_stores(here from = here::current()) { now().streaming_fence(from); }
inline void expect(bool holds, const char* why) { now().expect(holds, why); }

}  // namespace model
