// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
//
// A view is a pointer with a shape: dense, row-major, and trivially copyable, so that it can be passed to a kernel. It
// owns nothing; the owner of the memory decides how long it is valid.
//
//   std::vector<float> storage(6);
//   const belay::view<float, 2> m{storage.data(), {2, 3}};
//   m(1, 2) = 4;
//   const belay::view<float, 1> row = m[1];                 // the second row
//   const std::span<float> first_row = m.rows(0, 1).flat();
#pragma once

#include <cassert>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>

#include "belay/core/checked_size.hpp"
#include "belay/core/config.hpp"
#include "belay/core/error.hpp"
#include "belay/core/function_ref.hpp"
#include "belay/core/where.hpp"

namespace belay::inline BELAY_ABI {

/// A shape: the number of elements along each axis. It is usable in device code, which std::array is not.
template <std::size_t Rank>
struct extents {
  /// Elements along each axis.
  std::size_t along[Rank == 0 ? 1 : Rank] = {};

  /// Elements along `axis`. A shape is used like an array of `Rank` numbers.
  [[nodiscard]] BELAY_HD constexpr std::size_t& operator[](std::size_t axis) noexcept { return along[axis]; }
  [[nodiscard]] BELAY_HD constexpr const std::size_t& operator[](std::size_t axis) const noexcept {
    return along[axis];
  }
  [[nodiscard]] BELAY_HD static constexpr std::size_t size() noexcept { return Rank; }
  [[nodiscard]] BELAY_HD constexpr const std::size_t* data() const noexcept { return along; }
  [[nodiscard]] BELAY_HD constexpr const std::size_t* begin() const noexcept { return along; }
  [[nodiscard]] BELAY_HD constexpr const std::size_t* end() const noexcept { return along + Rank; }

  /// Equal along each axis.
  [[nodiscard]] BELAY_HD friend constexpr bool operator==(const extents& a, const extents& b) noexcept {
    for (std::size_t axis = 0; axis < Rank; ++axis) {
      if (a.along[axis] != b.along[axis]) return false;
    }
    return true;
  }
};

/// The extents that a list in braces gives.
template <std::size_t Rank>
[[nodiscard]] constexpr extents<Rank> extents_of(const std::size_t (&along)[Rank]) noexcept {
  extents<Rank> shape;
  for (std::size_t axis = 0; axis < Rank; ++axis) shape[axis] = along[axis];
  return shape;
}

/// Number of elements of a shape; the empty shape has one. A number that is more than any memory holds does not wrap
/// around, but stays larger than `largest_size`.
template <std::size_t Rank>
[[nodiscard]] BELAY_HD constexpr std::size_t element_count(const extents<Rank>& shape) noexcept {
  checked_size count = 1;
  for (std::size_t axis = 0; axis < Rank; ++axis) count *= shape[axis];
  return count.saturated();
}

/// Bytes of a tensor of such a shape. Throws `size_error` where they are more than any memory holds; `owner()` returns
/// the tensor's name for that message.
template <std::size_t Rank>
[[nodiscard]] std::size_t tensor_bytes(const extents<Rank>& shape, std::size_t element_bytes,
                                       function_ref<std::string()> owner, const where& at) {
  const checked_size bytes = checked_size(element_count(shape)) * element_bytes;
  if (!bytes.fits()) [[unlikely]]
    refuse_tensor({shape.data(), Rank}, element_bytes, owner, at);
  return bytes.saturated();
}
template <class T, std::size_t Rank>
[[nodiscard]] std::size_t tensor_bytes(const extents<Rank>& shape, function_ref<std::string()> owner, const where& at) {
  return tensor_bytes(shape, sizeof(T), owner, at);
}

/// A dense row-major view of `Rank` dimensions; extents in elements.
template <class T, std::size_t Rank>
class view {
 public:
  using element_type = T;
  using value_type = std::remove_cv_t<T>;
  /// Dimensions.
  static constexpr std::size_t rank = Rank;

  constexpr view() = default;
  /// Of memory that outlives it, row-major.
  BELAY_HD constexpr view(T* data, extents<Rank> shape) noexcept : data_(data), shape_(shape) {}

  /// A view of mutable elements is also a view of constant ones.
  template <class U>
    requires(std::same_as<const U, T> && !std::same_as<U, T>)
  BELAY_HD constexpr view(view<U, Rank> other) noexcept : data_(other.data()), shape_(other.shape()) {}

  /// The first element, the shape, and the elements and bytes of it; all elements as a span.
  [[nodiscard]] BELAY_HD constexpr T* data() const noexcept { return data_; }
  [[nodiscard]] BELAY_HD constexpr const extents<Rank>& shape() const noexcept { return shape_; }
  [[nodiscard]] BELAY_HD constexpr std::size_t extent(std::size_t axis) const noexcept { return shape_[axis]; }
  [[nodiscard]] BELAY_HD constexpr std::size_t size() const noexcept { return element_count(shape_); }
  [[nodiscard]] BELAY_HD constexpr std::size_t size_bytes() const noexcept {
    return (checked_size(size()) * sizeof(T)).saturated();
  }
  [[nodiscard]] constexpr std::span<T> flat() const noexcept { return {data_, size()}; }

  /// The element with that index along each axis, which nothing checks: kernels use it.
  template <class... Index>
    requires(sizeof...(Index) == Rank)
  [[nodiscard]] BELAY_HD constexpr T& operator()(Index... index) const noexcept {
    const extents<Rank> at{static_cast<std::size_t>(index)...};
    std::size_t offset = 0;
    for (std::size_t axis = 0; axis < Rank; ++axis) offset = offset * shape_[axis] + at[axis];
    return data_[offset];
  }

  /// The sub-view at `index` of the first axis.
  [[nodiscard]] BELAY_HD constexpr view<T, Rank - 1> operator[](std::size_t index) const noexcept
    requires(Rank > 1)
  {
    extents<Rank - 1> rest{};
    std::size_t stride = 1;
    for (std::size_t axis = 1; axis < Rank; ++axis) stride *= rest[axis - 1] = shape_[axis];
    return {data_ + index * stride, rest};
  }
  [[nodiscard]] BELAY_HD constexpr T& operator[](std::size_t index) const noexcept
    requires(Rank == 1)
  {
    return data_[index];
  }

  /// `count` entries of the first axis beginning at `first`.
  [[nodiscard]] BELAY_HD constexpr view rows(std::size_t first, std::size_t count) const noexcept
    requires(Rank >= 1)
  {
    extents<Rank> part = shape_;
    part[0] = count;
    std::size_t stride = 1;
    for (std::size_t axis = 1; axis < Rank; ++axis) stride *= shape_[axis];
    return {data_ + first * stride, part};
  }

 private:
  T* data_ = nullptr;
  extents<Rank> shape_{};
};

template <class T>
using vector_view = view<T, 1>;
template <class T>
using matrix_view = view<T, 2>;

static_assert(std::is_trivially_copyable_v<matrix_view<float>>);

}  // namespace belay::inline BELAY_ABI
