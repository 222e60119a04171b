// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rehearsal's tensors are addresses without memory. A layer that touches one outside of `frame.run` faults, and a
// bare SIGSEGV names nobody. While a rehearsed step is open a handler says which layer's call it was, and then lets the
// fault take its course: whoever handled SIGSEGV before (a sanitizer, a crash reporter, nobody) handles it as ever.
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// What a layer is called for, in the words of messages.
enum class layer_call : std::uint8_t { forward, backward, recompute, discard };

[[nodiscard]] constexpr const char* name(layer_call what) noexcept {
  switch (what) {
    case layer_call::forward: return "forward";
    case layer_call::backward: return "backward";
    case layer_call::recompute: return "recompute";
    case layer_call::discard: return "discard";
  }
  return "call";
}

/// A layer's call that is under way.
struct call_under_way {
  layer_call what = layer_call::forward;
  const char* layer = "";
  std::size_t layer_index = 0;
  std::size_t micro_batch = 0;
  where opened_at;
};

/// One rehearsed step of one thread. Nothing here is for a step that computes.
class rehearsal_watch {
 public:
  rehearsal_watch() = default;
  rehearsal_watch(rehearsal_watch&&) noexcept {}  // between steps, when there is nothing to take along
  rehearsal_watch& operator=(rehearsal_watch&&) noexcept { return *this; }
  ~rehearsal_watch() { end(); }

  /// `bytes` from `first` are addresses without memory until `end`, which the same thread calls.
  void begin(const std::byte* first, std::size_t bytes, where step_at) {
    end();
    first_ = first;
    bytes_ = bytes;
    step_at_ = step_at;
    offer_stack();
    hold_handler();
    outer_ = std::exchange(rehearsing_thread_.innermost, this);
    rehearsing_thread_.handling = false;  // whoever was before may have left by siglongjmp
    begun_ = true;
  }
  void end() noexcept {
    if (!std::exchange(begun_, false)) return;
    rehearsal_watch** link = &rehearsing_thread_.innermost;
    while (*link != nullptr && *link != this) link = &(*link)->outer_;
    if (*link == this) *link = outer_;
    release_handler();
    take_stack_back();
  }

  /// Names the call that goes on until the mark is gone; inside of another one, until then.
  class mark {
   public:
    mark(rehearsal_watch& owner, const call_under_way& now) noexcept
        : owner_(&owner), now_(now), outer_(std::exchange(owner.call_, &now_)) {}
    mark(const mark&) = delete;
    mark& operator=(const mark&) = delete;
    ~mark() { owner_->call_ = outer_; }

   private:
    rehearsal_watch* owner_;
    call_under_way now_;
    const call_under_way* outer_;
  };

 private:
  // A handler is given a signal and an address, and may neither lock nor allocate. What it cannot do without: the open
  // rehearsals of the thread that faulted, and whoever handled the signal before.
  struct faulting_thread {
    rehearsal_watch* innermost;
    bool handling;
  };
  struct handler_of_process {
    pthread_mutex_t changing;
    std::size_t holders;
    struct sigaction before;
  };
  static inline constinit thread_local faulting_thread rehearsing_thread_{nullptr, false};
  static inline constinit handler_of_process fault_handler_{PTHREAD_MUTEX_INITIALIZER, 0, {}};

  static void hold_handler() noexcept {
    ::pthread_mutex_lock(&fault_handler_.changing);
    struct sigaction now = {}, ours = {};
    if (fault_handler_.holders++ == 0 && ::sigaction(SIGSEGV, nullptr, &now) == 0 && !is_ours(now)) {
      fault_handler_.before = now;
      ours.sa_sigaction = &on_fault;
      ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
      ::sigemptyset(&ours.sa_mask);
      ::sigaction(SIGSEGV, &ours, nullptr);
    }
    ::pthread_mutex_unlock(&fault_handler_.changing);
  }
  // Who has put a handler on top of this one may still call it: it then calls the one before.
  static void release_handler() noexcept {
    ::pthread_mutex_lock(&fault_handler_.changing);
    struct sigaction now = {};
    if (--fault_handler_.holders == 0 && ::sigaction(SIGSEGV, nullptr, &now) == 0 && is_ours(now)) {
      ::sigaction(SIGSEGV, &fault_handler_.before, nullptr);
    }
    ::pthread_mutex_unlock(&fault_handler_.changing);
  }
  [[nodiscard]] static bool is_ours(const struct sigaction& what) noexcept {
    return (what.sa_flags & SA_SIGINFO) != 0 && what.sa_sigaction == &on_fault;
  }

  // For a thread that has no stack for signals: the fault may be that there is none left of its own.
  void offer_stack() {
    stack_t now = {};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    stack_.resize(std::size_t{1} << 16);
    stack_t ours = {};
    ours.ss_sp = stack_.data();
    ours.ss_size = stack_.size();
    ::sigaltstack(&ours, nullptr);
  }
  void take_stack_back() noexcept {
    stack_t now = {};
    if (stack_.empty() || ::sigaltstack(nullptr, &now) != 0 || now.ss_sp != stack_.data()) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }

  // Words for a handler: a buffer of its own, and nothing of the library that is not safe in one.
  class sentence {
   public:
    sentence& operator<<(const char* words) noexcept {
      for (; words != nullptr && *words != '\0' && length_ < sizeof text_ - 1; ++words) {
        const bool is_control = static_cast<unsigned char>(*words) < 0x20 || *words == 0x7f;  // which a terminal obeys
        text_[length_++] = is_control ? '?' : *words;
      }
      return *this;
    }
    sentence& operator<<(std::size_t number) noexcept {
      char digits[24];
      std::size_t at = sizeof digits - 1;
      digits[at] = '\0';
      do digits[--at] = static_cast<char>('0' + number % 10);
      while ((number /= 10) > 0);
      return *this << digits + at;
    }
    sentence& operator<<(where at) noexcept { return *this << at.file << ":" << static_cast<std::size_t>(at.line); }
    void say() noexcept {
      text_[length_++] = '\n';
      for (std::size_t done = 0; done < length_;) {
        const ssize_t n = ::write(STDERR_FILENO, text_ + done, length_ - done);
        if (n > 0)
          done += static_cast<std::size_t>(n);
        else if (errno != EINTR)
          return;
      }
    }

   private:
    char text_[1500];
    std::size_t length_ = 0;
  };

  enum class place { activations, elsewhere };
  void tell(place where_it_is, std::size_t byte) const noexcept {
    sentence says;
    says << "belay: a rehearsal touched memory, and has none: its tensors are addresses. ";
    if (where_it_is == place::activations)
      says << "Byte " << byte << " of the activations was touched ";
    else
      says << "What was touched is not of the activations (of symmetric memory, or a fault of another kind), ";
    if (call_ != nullptr) {
      says << "in the " << name(call_->what) << " of layer " << call_->layer_index << " '" << call_->layer
           << "' (micro-batch " << call_->micro_batch << ") opened at " << call_->opened_at;
    } else {
      says << "outside of a layer's call";
    }
    says << ", in the step begun at " << step_at_
         << ". Compute inside frame.run(...), which a rehearsal does not run; outside of a layer, ask the engine's "
            "stream: "
            "runs_nothing.";
    says.say();
  }

  static void on_fault(int number, siginfo_t* about, void* context) noexcept {
    if (rehearsing_thread_.handling) return let_it_end(number, about);  // whoever was before calls this one
    const int kept = errno;
    rehearsing_thread_.handling = true;
    if (about->si_code > 0) name_call(reinterpret_cast<std::uintptr_t>(about->si_addr), about->si_code);
    pass_on(number, about, context);
    rehearsing_thread_.handling = false;
    errno = kept;
  }

  // A null pointer and the like are no addresses at all, and nobody's but the program's.
  static void name_call(std::uintptr_t address, int code) noexcept {
    const rehearsal_watch* const innermost = rehearsing_thread_.innermost;
    for (const rehearsal_watch* open = innermost; open != nullptr; open = open->outer_) {
      const std::size_t offset = address - reinterpret_cast<std::uintptr_t>(open->first_);
      if (offset < open->bytes_) return open->tell(place::activations, offset);
    }
    if (innermost != nullptr && code == SEGV_ACCERR) innermost->tell(place::elsewhere, 0);
  }

  static void pass_on(int number, siginfo_t* about, void* context) noexcept {
    const struct sigaction& before = fault_handler_.before;
    if ((before.sa_flags & SA_SIGINFO) != 0)
      before.sa_sigaction(number, about, context);
    else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
      before.sa_handler(number);
    else if (before.sa_handler == SIG_IGN && about->si_code <= 0)
      return;
    else
      let_it_end(number, about);
  }

  // As if nobody handled it: the instruction faults again; what was sent by a process is sent again.
  static void let_it_end(int number, const siginfo_t* about) noexcept {
    struct sigaction plain = {};
    plain.sa_handler = SIG_DFL;
    ::sigemptyset(&plain.sa_mask);
    ::sigaction(number, &plain, nullptr);
    if (about->si_code <= 0) ::raise(number);
  }

  const std::byte* first_ = nullptr;
  std::size_t bytes_ = 0;
  where step_at_;
  rehearsal_watch* outer_ = nullptr;
  const call_under_way* call_ = nullptr;
  std::vector<std::byte> stack_;
  bool begun_ = false;
};

/// Of a step that computes.
struct no_watch {
  struct mark {
    mark(no_watch&, const call_under_way&) noexcept {}
  };
  void begin(const std::byte*, std::size_t, where) const noexcept {}
  void end() const noexcept {}
};

}  // namespace belay::inline BELAY_ABI
