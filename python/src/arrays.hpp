// SPDX-License-Identifier: Apache-2.0
// NumPy arrays in and out.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "binding.hpp"

namespace slimpack::python {

/// Any array of one axis; NumPy's, and those of others that are in the memory of the host.
using AnyVector = nb::ndarray<nb::ro, nb::ndim<1>, nb::device::cpu>;
/// An array that Python is given.
template <class Value>
using NumpyArray = nb::ndarray<nb::numpy, Value, nb::device::cpu>;

/// An array that owns these values, of that shape. No copy.
template <class Value>
[[nodiscard]] NumpyArray<Value> array_of(std::vector<Value> values,
                                         std::initializer_list<std::size_t> shape) {
  auto owned = std::make_unique<std::vector<Value>>(std::move(values));
  Value* const data = owned->data();
  nb::capsule owner(owned.get(), [](void* memory) noexcept {
    delete static_cast<std::vector<Value>*>(memory);  // NOLINT(cppcoreguidelines-owning-memory)
  });
  static_cast<void>(owned.release());
  return NumpyArray<Value>(data, shape, owner);
}
/// The same with one axis.
template <class Value>
[[nodiscard]] NumpyArray<Value> array_of(std::vector<Value> values) {
  const std::size_t size = values.size();
  return array_of(std::move(values), {size});
}

/// Calls visit(i, value) for each element of an array of integers, in order; `value` has the
/// array's own type. Throws InvalidInput for other elements. O(elements).
template <class Visit>
void for_each_integer(const std::string& name, const AnyVector& array, const Visit& visit) {
  const auto walk = [&]<class Integer>(Integer) {
    const auto* element = static_cast<const Integer*>(array.data());
    for (std::size_t i = 0; i < array.shape(0); ++i) {
      visit(i, *element);
      element += array.stride(0);
    }
  };
  const nb::dlpack::dtype type = array.dtype();
  const bool is_signed = type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::Int);
  require(is_signed || type.code == static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt),
          name + ": must be integers");
  switch (type.bits) {
    case 8:
      return is_signed ? walk(std::int8_t{}) : walk(std::uint8_t{});
    case 16:
      return is_signed ? walk(std::int16_t{}) : walk(std::uint16_t{});
    case 32:
      return is_signed ? walk(std::int32_t{}) : walk(std::uint32_t{});
    case 64:
      return is_signed ? walk(std::int64_t{}) : walk(std::uint64_t{});
    default:
      throw InvalidInput(name + ": must be integers of 8, 16, 32 or 64 bits");
  }
}

/// The element as a positive 63-bit number. Throws InvalidInput naming its place.
template <class Integer>
[[nodiscard]] std::int64_t positive(const std::string& name, std::size_t i, Integer value) {
  if (value > 0 && static_cast<std::uint64_t>(value) <= INT64_MAX) {
    return static_cast<std::int64_t>(value);
  }
  throw InvalidInput(name + ": element " + std::to_string(i) +
                     " (from 0) must be a positive integer of 63 bits, got " +
                     std::to_string(value));
}

}  // namespace slimpack::python
