// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// What a call has kept may come back to another place on the device. The views that its residue holds are then given
// their new addresses: those into memory that has moved, and no others. A residue is an aggregate of views and numbers,
// of aggregates of them, and so on; this is looked up in the type, so that a layer has nothing to write. A class that
// is none of that has `void relocate(const belay::relocation& to)`; one without does not compile.
//
//   struct residue { belay::view<float, 2> out; belay::view<const float, 2> x; };    // nothing to write
//   class lookup {
//    public:
//     void relocate(const belay::relocation& to) { to(table_); }
//    private:
//     belay::view<int, 1> table_;
//   };
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "belay/core/config.hpp"
#include "belay/core/view.hpp"
#include "belay/step/gradient.hpp"

namespace belay::inline BELAY_ABI {

class relocation;

/// Says itself how it is given new addresses.
template <class T>
concept relocates_itself = requires(T& what, const relocation& to) {
  { what.relocate(to) } -> std::same_as<void>;
};

/// Converts to whatever a member is; for counting members, and never called.
struct any_member {
  /// Never defined.
  template <class T>
  operator T() const;
};
template <class T, std::size_t... Index>
[[nodiscard]] consteval bool initialised_by(std::index_sequence<Index...>) {
  return requires { T{(static_cast<void>(Index), any_member{})...}; };
}
inline constexpr std::size_t most_members = 12;
/// Members of an aggregate; more than `most_members` where there are more, or where they cannot be counted.
template <class T, std::size_t Tried = most_members + 1>
[[nodiscard]] consteval std::size_t member_count() {
  if constexpr (initialised_by<T>(std::make_index_sequence<Tried>{}))
    return Tried;
  else if constexpr (Tried == 0)
    return most_members + 1;
  else
    return member_count<T, Tried - 1>();
}

/// Calls `f(members...)` with references to the members of an aggregate.
template <class T, class F>
constexpr decltype(auto) with_members(T& of, F&& f) {
  constexpr std::size_t count = member_count<T>();
  static_assert(count <= most_members);
  if constexpr (count == 0) {
    return f();
  } else if constexpr (count == 1) {
    auto& [a] = of;
    return f(a);
  } else if constexpr (count == 2) {
    auto& [a, b] = of;
    return f(a, b);
  } else if constexpr (count == 3) {
    auto& [a, b, c] = of;
    return f(a, b, c);
  } else if constexpr (count == 4) {
    auto& [a, b, c, d] = of;
    return f(a, b, c, d);
  } else if constexpr (count == 5) {
    auto& [a, b, c, d, e] = of;
    return f(a, b, c, d, e);
  } else if constexpr (count == 6) {
    auto& [a, b, c, d, e, g] = of;
    return f(a, b, c, d, e, g);
  } else if constexpr (count == 7) {
    auto& [a, b, c, d, e, g, h] = of;
    return f(a, b, c, d, e, g, h);
  } else if constexpr (count == 8) {
    auto& [a, b, c, d, e, g, h, i] = of;
    return f(a, b, c, d, e, g, h, i);
  } else if constexpr (count == 9) {
    auto& [a, b, c, d, e, g, h, i, j] = of;
    return f(a, b, c, d, e, g, h, i, j);
  } else if constexpr (count == 10) {
    auto& [a, b, c, d, e, g, h, i, j, k] = of;
    return f(a, b, c, d, e, g, h, i, j, k);
  } else if constexpr (count == 11) {
    auto& [a, b, c, d, e, g, h, i, j, k, l] = of;
    return f(a, b, c, d, e, g, h, i, j, k, l);
  } else {
    auto& [a, b, c, d, e, g, h, i, j, k, l, m] = of;
    return f(a, b, c, d, e, g, h, i, j, k, l, m);
  }
}

/// Whether a member is a view or a span, which says where its memory is.
template <class T>
inline constexpr bool is_view = false;
template <class T, std::size_t Rank>
inline constexpr bool is_view<view<T, Rank>> = true;
template <class T>
inline constexpr bool is_span = false;
template <class T>
inline constexpr bool is_span<std::span<T>> = true;
/// The type of a container's elements.
template <class T>
struct element_of_container {
  using type = void;
};
template <class T, std::size_t Count>
struct element_of_container<std::array<T, Count>> {
  using type = T;
};
template <class T>
struct element_of_container<std::optional<T>> {
  using type = T;
};

template <class T>
[[nodiscard]] consteval bool has_relocatable_members();

/// Whether all addresses in a T are known. A member that is constant cannot be given a new one.
template <class T>
[[nodiscard]] consteval bool is_relocatable() {
  if constexpr (std::is_const_v<T> || std::is_reference_v<T>)
    return false;
  else if constexpr (relocates_itself<T>)
    return true;
  else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || is_view<T> || is_span<T> || is_constant_input<T>)
    return true;
  else if constexpr (std::is_pointer_v<T>)
    return !std::is_function_v<std::remove_pointer_t<T>>;
  else if constexpr (!std::is_void_v<typename element_of_container<T>::type>)
    return is_relocatable<typename element_of_container<T>::type>();
  else if constexpr (std::is_aggregate_v<T> && std::is_class_v<T>)
    return has_relocatable_members<T>();
  else
    return false;
}
template <class T>
[[nodiscard]] consteval bool has_relocatable_members() {
  if constexpr (member_count<T>() > most_members) {
    return false;
  } else {
    constexpr auto all = []<class... Members>(Members&...) {
      return std::bool_constant<(is_relocatable<Members>() && ...)>{};
    };
    return decltype(with_members(std::declval<T&>(), all))::value;
  }
}

/// A type that a call may keep for its backward, and that can be moved to another place: all addresses in it are known.
template <class T>
concept relocatable = is_relocatable<T>();

/// From where memory was to where it is. It points to a list that outlives it.
class relocation {
 public:
  /// `now` is null for memory that did not come back: a view into it has its shape, and reading it faults.
  struct moved_range {
    /// Bytes that moved: where they were, how many, and where they are.
    const std::byte* first;
    std::size_t bytes;
    std::byte* now;
  };
  /// The ranges outlive it.
  explicit relocation(std::span<const moved_range> moved) noexcept : moved_(moved) {}

  /// Where `was` is now: there, where it points into no memory that has moved.
  template <class T>
  [[nodiscard]] T* place_of(T* was) const noexcept {
    const auto* byte = reinterpret_cast<const std::byte*>(was);
    for (const moved_range& each : moved_) {
      if (byte < each.first || byte >= each.first + each.bytes) continue;
      return each.now == nullptr ? nullptr : reinterpret_cast<T*>(each.now + (byte - each.first));
    }
    return was;
  }

  /// Gives `what`, and all that is in it, its new addresses.
  template <relocatable T>
  void operator()(T& what) const {
    if constexpr (relocates_itself<T>) {
      what.relocate(*this);
    } else if constexpr (is_view<T> || is_constant_input<T>) {
      what = T(view<typename T::element_type, T::rank>{place_of(what.data()), what.shape()});
    } else if constexpr (is_span<T>) {
      what = T{place_of(what.data()), what.size()};
    } else if constexpr (std::is_pointer_v<T>) {
      what = place_of(what);
    } else if constexpr (!std::is_void_v<typename element_of_container<T>::type>) {
      if constexpr (requires { what.has_value(); }) {
        if (what) (*this)(*what);
      } else {
        for (auto& each : what) (*this)(each);
      }
    } else if constexpr (std::is_class_v<T>) {
      with_members(what, [this](auto&... members) { ((*this)(members), ...); });
    }
  }

 private:
  std::span<const moved_range> moved_;
};

}  // namespace belay::inline BELAY_ABI
