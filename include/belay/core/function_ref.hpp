// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A reference to a callable, as two pointers: a function that takes it is compiled once, not for each lambda.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

/// Refers to an object that can be called, which outlives it; `std::function_ref` of C++26 does the same.
///
///   bool wait(function_ref<bool(int)> done);
///   wait([&](int look) { return look > limit; });
template <class Signature>
class function_ref;

template <class Result, class... Arguments>
class function_ref<Result(Arguments...)> {
 public:
  template <class Callable>
  requires(!std::is_same_v<std::remove_cvref_t<Callable>, function_ref> &&
           std::is_object_v<std::remove_cvref_t<Callable>> && std::is_invocable_r_v<Result, Callable&, Arguments...>)
      function_ref(Callable&& of)
  noexcept
      : of_(const_cast<void*>(static_cast<const void*>(std::addressof(of)))),
        call_([](void* what, Arguments... arguments) -> Result {
          return (*static_cast<std::remove_reference_t<Callable>*>(what))(std::forward<Arguments>(arguments)...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(of_, std::forward<Arguments>(arguments)...); }

 private:
  void* of_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace belay::inline BELAY_ABI
