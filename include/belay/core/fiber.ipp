// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// Two contexts and the changes between them, which sanitizers are told of.
#pragma once

#include <cxxabi.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "belay/core/error.hpp"
#include "belay/core/fiber.hpp"

// Of the sanitizers, in builds that have one.
extern "C" {
void __sanitizer_start_switch_fiber(void** kept, const void* bottom, std::size_t bytes);
void __sanitizer_finish_switch_fiber(void* kept, const void** bottom, std::size_t* bytes);
void* __tsan_create_fiber(unsigned flags);
void* __tsan_get_current_fiber();
void __tsan_switch_to_fiber(void* to, unsigned flags);
void __tsan_destroy_fiber(void* of);
}

namespace belay::inline BELAY_ABI {

/// Whether a thread sanitizer looks at memory.
inline constexpr bool thread_sanitizer = sanitized_addresses && !address_sanitizer;

BELAY_DECL fiber::fiber(where at) {
  const auto guard = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  mapped_bytes_ = guard + stack_bytes;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK;
  void* const mapped = ::mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (mapped == MAP_FAILED || ::mprotect(mapped, guard, PROT_NONE) != 0) {
    const int problem = errno;
    if (mapped != MAP_FAILED) ::munmap(mapped, mapped_bytes_);
    throw budget_error("stack of a fiber: " + std::string(std::strerror(problem)), mapped_bytes_, 0, at);
  }
  mapped_ = static_cast<std::byte*>(mapped);
  own_.stack = mapped_ + guard;
  own_.bytes = stack_bytes;
  ::getcontext(&own_.context);
  own_.context.uc_stack.ss_sp = mapped_ + guard;
  own_.context.uc_stack.ss_size = stack_bytes;
  own_.context.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  ::makecontext(&own_.context, reinterpret_cast<void (*)()>(&fiber::begin), 2, static_cast<unsigned>(self >> 32U),
                static_cast<unsigned>(self & 0xffffffffU));
  if constexpr (thread_sanitizer) own_.thread_sanitizers = __tsan_create_fiber(0);
}

BELAY_DECL fiber::~fiber() {
  if (under_way()) std::terminate();
  if (begun_) enter();  // it leaves its stack for good
  if constexpr (thread_sanitizer) __tsan_destroy_fiber(own_.thread_sanitizers);
  ::munmap(mapped_, mapped_bytes_);
}

BELAY_DECL void fiber::start(function_ref<void()> body, where at) {
  if (under_way()) throw usage_error("a fiber runs one body at a time: the one before is not over", at);
  next_ = &body;
  begun_ = under_way_ = true;
  std::fegetenv(&modes_);
  enter();
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

BELAY_DECL void fiber::go_on(where at) {
  if (!under_way()) throw usage_error("no body of this fiber is under way", at);
  enter();
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
}

BELAY_DECL void fiber::enter() {
  if constexpr (thread_sanitizer) caller_.thread_sanitizers = __tsan_get_current_fiber();
  change(caller_, own_, switch_kind::once_more);
}

BELAY_DECL void fiber::hand_back() noexcept { change(own_, caller_, switch_kind::once_more); }

BELAY_DECL void fiber::begin(unsigned high, unsigned low) {
  fiber* const self = reinterpret_cast<fiber*>((static_cast<std::uintptr_t>(high) << 32U) | low);
  arrive(self->own_, self->caller_);
  self->run_bodies();
  change(self->own_, self->caller_, switch_kind::for_good);
}

BELAY_DECL void fiber::run_bodies() {
  while (next_ != nullptr) {
    std::fesetenv(&modes_);
    try {
      const function_ref<void()> body = *std::exchange(next_, nullptr);
      body();
    } catch (...) {
      thrown_ = std::current_exception();
    }
    under_way_ = false;
    hand_back();
  }
}

BELAY_DECL void fiber::change(flow_at_rest& from, flow_at_rest& to, switch_kind how) noexcept {
  auto* const of_thread = reinterpret_cast<void*>(abi::__cxa_get_globals());
  static_assert(sizeof(flow_exceptions) == 2 * sizeof(void*));
  std::memcpy(&from.exceptions, of_thread, sizeof(flow_exceptions));
  std::memcpy(of_thread, &to.exceptions, sizeof(flow_exceptions));
  if constexpr (address_sanitizer)
    __sanitizer_start_switch_fiber(how == switch_kind::for_good ? nullptr : &from.address_sanitizers, to.stack,
                                   to.bytes);
  if constexpr (thread_sanitizer) __tsan_switch_to_fiber(to.thread_sanitizers, 0);
  ::swapcontext(&from.context, &to.context);
  arrive(from, to);
}

BELAY_DECL void fiber::arrive([[maybe_unused]] flow_at_rest& here, [[maybe_unused]] flow_at_rest& left) noexcept {
  if constexpr (address_sanitizer) __sanitizer_finish_switch_fiber(here.address_sanitizers, &left.stack, &left.bytes);
}

}  // namespace belay::inline BELAY_ABI
