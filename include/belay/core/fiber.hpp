// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A second flow of control of one thread, with a stack of its own. It runs when the thread says so and until it hands
// back: the two never run at once, so they share what they like without locks, and their order is that of the program.
// Stack and context are made once; to start, to hand back and to go on allocates nothing.
//
//   belay::fiber other;
//   const auto body = [&] { first_half(); other.hand_back(); second_half(); };
//   other.start(body);  // returns after first_half()
//   between();
//   other.go_on();      // returns after second_half()
#pragma once

#include <ucontext.h>

#include <cfenv>
#include <cstddef>
#include <exception>

#include "belay/core/config.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// A flow of control beside that of the thread that starts it. Each of the two has its own exceptions, so either may
/// hand over in a handler of one; rounding and other modes of arithmetic are those of the thread when it starts.
class fiber {
 public:
  /// Bytes of its stack, of which memory is used as far as the flow goes: as many as threads have.
  static constexpr std::size_t stack_bytes = std::size_t{8} << 20;

  /// Maps the stack, with pages below it that nobody may touch. Throws budget_error.
  explicit fiber(where at = where::current());
  fiber(const fiber&) = delete;  // its stack points to it
  fiber& operator=(const fiber&) = delete;
  /// Its flow is over: else the program ends, since what lives on its stack could not be destroyed.
  ~fiber();

  /// Runs `body()` on the other stack, and returns when that hands back or is over. The callable lives until it is
  /// over: a body that hands back has a name.
  /// Throws what the body throws; usage_error where another body has begun and is not over.
  void start(function_ref<void()> body, where at = where::current());
  /// Goes on after the last `hand_back`, and returns as `start` does. Throws usage_error where no body is under way.
  void go_on(where at = where::current());
  /// In the body: whoever has started it, or let it go on, runs until the next `go_on`.
  void hand_back() noexcept;

  /// Whether a body has begun and is not over.
  [[nodiscard]] bool under_way() const noexcept { return under_way_; }

 private:
  // The exceptions that a flow handles and those that unwind it, which the runtime keeps for each thread.
  struct flow_exceptions {
    void* handled = nullptr;
    unsigned unwinding = 0;
  };
  // A flow that does not run, and the names that sanitizers have for it.
  struct flow_at_rest {
    ucontext_t context{};
    flow_exceptions exceptions;
    void* address_sanitizers = nullptr;
    void* thread_sanitizers = nullptr;
    const void* stack = nullptr;
    std::size_t bytes = 0;
  };
  enum class switch_kind : bool { once_more, for_good };

  // `makecontext` hands on words of this size alone: the halves of a pointer.
  static void begin(unsigned high, unsigned low);
  void run_bodies();
  static void change(flow_at_rest& from, flow_at_rest& to, switch_kind how) noexcept;
  // In the flow that goes on; `left` is the one before.
  static void arrive(flow_at_rest& here, flow_at_rest& left) noexcept;
  void enter();

  std::byte* mapped_ = nullptr;
  std::size_t mapped_bytes_ = 0;
  flow_at_rest own_, caller_;
  const function_ref<void()>* next_ = nullptr;  // until it has begun
  std::exception_ptr thrown_;
  std::fenv_t modes_{};
  bool begun_ = false;  // some body
  bool under_way_ = false;
};

}  // namespace belay::inline BELAY_ABI

#if !defined(BELAY_SEPARATE_COMPILATION)
#include "belay/core/fiber.ipp"  // IWYU pragma: export
#endif
