// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A stack of its own for each thread or lane that is played, and the switch between two stacks: some ten instructions,
// because a search of the model checker makes some hundred million of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace fakes {

#if defined(__x86_64__)

// Saves what a called function must keep, leaves the stack, and goes on where the other was left.
__attribute__((naked, noinline)) inline void switch_stack(void** /*save*/, void* /*next*/) {
  asm volatile(
      "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

class fiber {
 public:
  /// Begins again: the next `resume` calls `entry`, which never returns.
  void restart(void (*entry)()) {
    if (!stack_) stack_ = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    auto top = reinterpret_cast<std::uintptr_t>(stack_.get() + stack_bytes) / 16 * 16;
    auto* words = reinterpret_cast<void**>(top);
    *--words = nullptr;  // where entry would return to
    *--words = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--words = nullptr;
    at_ = words;
  }
  /// Leaves `from` for this one.
  void resume(fiber& from) { switch_stack(&from.at_, at_); }

 private:
  static constexpr std::size_t stack_bytes = 128 * 1024;
  std::unique_ptr<std::byte[]> stack_;
  void* at_ = nullptr;
};

#else

class fiber {
 public:
  void restart(void (*entry)()) {
    if (!stack_) stack_ = std::make_unique_for_overwrite<std::byte[]>(stack_bytes);
    ::getcontext(&at_);
    at_.uc_stack.ss_sp = stack_.get();
    at_.uc_stack.ss_size = stack_bytes;
    at_.uc_link = nullptr;
    ::makecontext(&at_, entry, 0);
  }
  void resume(fiber& from) { ::swapcontext(&from.at_, &at_); }

 private:
  static constexpr std::size_t stack_bytes = 256 * 1024;
  std::unique_ptr<std::byte[]> stack_;
  ucontext_t at_{};
};

#endif

}  // namespace fakes
