// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A rehearsal's tensors are addresses without memory, so a layer that touches one outside of its kernels faults. Where
// that was asked for, a handler of SIGSEGV prints which layer's call it was, while a rehearsed step is open. The signal
// is then handled as before: by the handler that was installed earlier (of a sanitizer, of a crash reporter), or by the
// system.
// IWYU pragma: private, include "belay/step.hpp"
#pragma once

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "belay/core/config.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// The purpose of a layer's call.
enum class layer_call : std::uint8_t {
  forward,
  backward,
  input_gradient,
  weight_gradient,
  added_at_once,  // no call: an input gradient that was one with its weight gradient says so at its end
  recompute,
  discard
};

[[nodiscard]] constexpr const char* name(layer_call what) noexcept {
  switch (what) {
    case layer_call::forward: return "forward";
    case layer_call::backward: return "backward";
    case layer_call::input_gradient: return "input gradient";
    case layer_call::weight_gradient: return "weight gradient";
    case layer_call::added_at_once: return "weights at once";
    case layer_call::recompute: return "recompute";
    case layer_call::discard: return "discard";
  }
  return "call";
}

/// A layer's call while it runs.
struct call_under_way {
  layer_call what = layer_call::forward;
  const char* layer = "";
  std::size_t layer_index = 0;
  std::size_t micro_batch = 0;
  where opened_at;
};

/// Explains faults in one rehearsed step of one thread, where it is asked to.
class rehearsal_watch {
 public:
  rehearsal_watch() = default;
  rehearsal_watch(const rehearsal_watch&) = delete;
  rehearsal_watch& operator=(const rehearsal_watch&) = delete;
  ~rehearsal_watch() { end(); }

  /// Explains faults of steps from now on, between steps. Without this call no handler is installed.
  void explain_faults() noexcept { explains_ = true; }
  /// Says on standard error, once a process, that a body is rehearsed and which option explains a fault in it.
  static void announce() noexcept {
    ::pthread_mutex_lock(&fault_handler_.changing);
    if (!std::exchange(fault_handler_.announced, true)) {
      message text;
      text << "belay: the body is rehearsed over addresses without memory; if it faults there (SIGSEGV), "
              "launch_options::explain_faults = fault_explanation::by_handler says in which layer";
      text.write_to_stderr();
    }
    ::pthread_mutex_unlock(&fault_handler_.changing);
  }

  /// `bytes` from `first` are addresses without memory until `end`, which is called by the same thread.
  void begin(const std::byte* first, std::size_t bytes, where step_at) {
    end();
    if (!explains_) return;
    first_ = first;
    bytes_ = bytes;
    step_at_ = step_at;
    install_signal_stack();
    install_handler();
    outer_ = std::exchange(rehearsing_thread_.innermost, this);
    rehearsing_thread_.handling = false;  // an earlier handler may have been left by siglongjmp
    begun_ = true;
    std::atomic_signal_fence(std::memory_order_seq_cst);
  }
  void end() noexcept {
    if (!std::exchange(begun_, false)) return;
    rehearsal_watch** link = &rehearsing_thread_.innermost;
    while (*link != nullptr && *link != this) link = &(*link)->outer_;
    if (*link == this) *link = outer_;
    release_handler();
    remove_signal_stack();
  }

  /// The running call, which another flow of control interrupts: none runs until it is taken up.
  using calls_aside = const call_under_way*;
  [[nodiscard]] calls_aside set_aside() noexcept { return call_at(nullptr); }
  void take_up(calls_aside calls) noexcept { static_cast<void>(call_at(calls)); }

  /// Names the running call while the mark exists. Marks nest.
  class mark {
   public:
    mark(rehearsal_watch& owner, const call_under_way& now) noexcept
        : owner_(&owner), now_(now), outer_(std::exchange(owner.call_, &now_)) {
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the handler reads what no other code of the thread does
    }
    mark(const mark&) = delete;
    mark& operator=(const mark&) = delete;
    ~mark() {
      std::atomic_signal_fence(std::memory_order_seq_cst);
      owner_->call_ = outer_;
    }

   private:
    rehearsal_watch* owner_;
    call_under_way now_;
    const call_under_way* outer_;
  };

 private:
  // A signal handler may neither lock nor allocate, so its state is global: the open rehearsals of the faulting thread,
  // and the handler that was installed before. Beside it, whether this process has been told of it.
  struct faulting_thread {
    rehearsal_watch* innermost;
    bool handling;
  };
  struct handler_of_process {
    pthread_mutex_t changing;
    std::size_t holders;
    struct sigaction before;
    bool announced;
  };
  static inline constinit thread_local faulting_thread rehearsing_thread_{nullptr, false};
  static inline constinit handler_of_process fault_handler_{PTHREAD_MUTEX_INITIALIZER, 0, {}, false};

  static void install_handler() noexcept {
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
  // A handler that was installed on top of this one may still call it; it then calls the one before.
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

  // The fault may be an overflow of the thread's stack, so the handler gets one of its own where there is none.
  void install_signal_stack() {
    stack_t now = {};
    if (::sigaltstack(nullptr, &now) != 0 || (now.ss_flags & SS_DISABLE) == 0) return;
    stack_.resize(std::size_t{1} << 16);
    stack_t ours = {};
    ours.ss_sp = stack_.data();
    ours.ss_size = stack_.size();
    ::sigaltstack(&ours, nullptr);
  }
  void remove_signal_stack() noexcept {
    stack_t now = {};
    if (stack_.empty() || ::sigaltstack(nullptr, &now) != 0 || now.ss_sp != stack_.data()) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    ::sigaltstack(&none, nullptr);
  }

  calls_aside call_at(calls_aside now) noexcept {
    const calls_aside before = std::exchange(call_, now);
    std::atomic_signal_fence(std::memory_order_seq_cst);
    return before;
  }

  // A message that is put together without functions that are unsafe in a signal handler.
  class message {
   public:
    message& operator<<(const char* words) noexcept {
      for (; words != nullptr && *words != '\0' && length_ < sizeof text_ - 1; ++words) {
        const bool is_control = static_cast<unsigned char>(*words) < 0x20 || *words == 0x7f;  // which a terminal obeys
        text_[length_++] = is_control ? '?' : *words;
      }
      return *this;
    }
    message& operator<<(std::size_t number) noexcept {
      char digits[24];
      std::size_t at = sizeof digits - 1;
      digits[at] = '\0';
      do digits[--at] = static_cast<char>('0' + number % 10);
      while ((number /= 10) > 0);
      return *this << digits + at;
    }
    message& operator<<(where at) noexcept { return *this << at.file << ":" << static_cast<std::size_t>(at.line); }
    void write_to_stderr() noexcept {
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

  enum class memory_kind { activations, elsewhere };
  void explain(memory_kind region, std::size_t byte) const noexcept {
    message text;
    text << "belay: a rehearsal touched memory, and has none: its tensors are addresses. ";
    if (region == memory_kind::activations)
      text << "Byte " << byte << " of the activations was touched ";
    else
      text << "What was touched is not of the activations (of symmetric memory, or a fault of another kind), ";
    if (call_ != nullptr) {
      text << "in the " << name(call_->what) << " of layer " << call_->layer_index << " '" << call_->layer
           << "' (micro-batch " << call_->micro_batch << ") opened at " << call_->opened_at;
    } else {
      text << "outside of a layer's call";
    }
    text << ", in the step begun at " << step_at_
         << ". Compute by frame.each, frame.teams and frame.product, which a rehearsal does not run; outside of a "
            "layer, ask the engine's stream: runs_nothing.";
    text.write_to_stderr();
  }

  static void on_fault(int number, siginfo_t* about, void* context) noexcept {
    // The handler that was installed before may call this one.
    if (rehearsing_thread_.handling) return take_default_action(number, about);
    const int kept = errno;
    rehearsing_thread_.handling = true;
    if (about->si_code > 0) report_call(reinterpret_cast<std::uintptr_t>(about->si_addr), about->si_code);
    pass_on(number, about, context);
    rehearsing_thread_.handling = false;
    errno = kept;
  }

  // A null pointer, and the like, is not an address of a rehearsal.
  static void report_call(std::uintptr_t address, int code) noexcept {
    const rehearsal_watch* const innermost = rehearsing_thread_.innermost;
    for (const rehearsal_watch* open = innermost; open != nullptr; open = open->outer_) {
      const std::size_t offset = address - reinterpret_cast<std::uintptr_t>(open->first_);
      if (offset < open->bytes_) return open->explain(memory_kind::activations, offset);
    }
    if (innermost != nullptr && code == SEGV_ACCERR) innermost->explain(memory_kind::elsewhere, 0);
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
      take_default_action(number, about);
  }

  // As if there were no handler: the instruction faults again; a signal that a process sent is raised again.
  static void take_default_action(int number, const siginfo_t* about) noexcept {
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
  bool explains_ = false;
  bool begun_ = false;
};

/// The watch of a step that computes: it does nothing.
struct no_watch {
  struct calls_aside {};
  [[nodiscard]] calls_aside set_aside() const noexcept { return {}; }
  void take_up(calls_aside) const noexcept {}
  struct mark {
    mark(no_watch&, const call_under_way&) noexcept {}
  };
  void explain_faults() const noexcept {}
  void begin(const std::byte*, std::size_t, where) const noexcept {}
  void end() const noexcept {}
};

}  // namespace belay::inline BELAY_ABI
