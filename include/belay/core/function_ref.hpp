// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A callable by reference, as std::function_ref of C++26: code that takes one is compiled once, not once a lambda. For
// cold code; a call goes through a pointer.
//
//   int count_if(int size, belay::function_ref<bool(int)> holds) {
//     int count = 0;
//     for (int i = 0; i < size; ++i) count += holds(i);
//     return count;
//   }
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"

namespace belay::inline BELAY_ABI {

template <class Signature>
class function_ref;

/// A plain handle: the callable must outlive every call.
template <class Result, class... Arguments>
class function_ref<Result(Arguments...)> {
 public:
  /// The callable outlives it.
  template <class Callable>
    requires(!std::is_same_v<std::remove_cvref_t<Callable>, function_ref> &&
             std::is_object_v<std::remove_cvref_t<Callable>> && std::is_invocable_r_v<Result, Callable&, Arguments...>)
  function_ref(Callable&& callable) noexcept
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(callable)))),
        call_([](void* object, Arguments... arguments) -> Result {
          auto& callable_there = *static_cast<std::remove_reference_t<Callable>*>(object);
          if constexpr (std::is_void_v<Result>)
            static_cast<void>(callable_there(std::forward<Arguments>(arguments)...));
          else
            return callable_there(std::forward<Arguments>(arguments)...);
        }) {}

  /// Calls it.
  Result operator()(Arguments... arguments) const { return call_(object_, std::forward<Arguments>(arguments)...); }

 private:
  void* object_;
  Result (*call_)(void*, Arguments...);
};

}  // namespace belay::inline BELAY_ABI
