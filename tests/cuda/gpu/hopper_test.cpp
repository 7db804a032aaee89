// SPDX-License-Identifier: Apache-2.0
// What the Hopper kernels assume of the device, one assumption a check. Where one fails, the
// emulator (simt/hopper_emulated.hpp) has it wrong too.
#include <doctest/doctest.h>

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "ops/hopper_probe.hpp"
#include "slimpack_cuda/device.hpp"
#include "support/skip.hpp"

namespace hopper_test {

using namespace slimpack::cuda;

TEST_CASE("Hopper: boxes, descriptors and fragments lie as the kernels assume" *
          doctest::test_suite("needs-hopper")) {
  const DeviceProperties properties = device_properties();
  if (properties.major != 9 || properties.minor != 0) {
    slimpack::test::skip("hopper", "not a Hopper device: " + properties.name);
    return;
  }
  constexpr std::size_t kListed = 101;
  std::mt19937 random(1);
  const auto integers = [&](std::size_t count) {
    std::vector<Bf16> values(count);
    for (Bf16& value : values) value = to_bf16(static_cast<float>(random() % 17) - 8.0F);
    return values;
  };
  const auto a = integers(64 * 64), b = integers(kListed * 64), v = integers(64 * 128);
  const Stream stream;
  const auto on_device = [&](const std::vector<Bf16>& values) {
    DeviceBuffer<Bf16> buffer(static_cast<std::int64_t>(values.size()));
    upload(buffer.span(), std::span(values), stream.view());
    return buffer;
  };
  const auto a_buffer = on_device(a), b_buffer = on_device(b), v_buffer = on_device(v);
  const DeviceBuffer<Bf16> box_buffer(64 * 64);
  const DeviceBuffer<float> keys_buffer(64 * 128), values_buffer(64 * 128);
  detail::hopper_probe(box_buffer.span(), keys_buffer.span(), values_buffer.span(), a_buffer.span(),
                       b_buffer.span(), v_buffer.span(), stream.view());
  const auto box = download(box_buffer.span(), stream.view());
  const auto keys = download(keys_buffer.span(), stream.view());
  const auto values = download(values_buffer.span(), stream.view());
  int wrong_box = 0, wrong_keys = 0, wrong_filled = 0, wrong_values = 0;
  for (std::size_t row = 0; row < 64; ++row) {
    for (std::size_t col = 0; col < 64; ++col) {
      const std::size_t chunk = (col / 8) ^ (row % 8);
      if (box[row * 64 + chunk * 8 + col % 8] != a[row * 64 + col]) ++wrong_box;
    }
    for (std::size_t col = 0; col < 128; ++col) {
      float by_key = 0, by_value = 0;
      for (std::size_t k = 0; k < 64; ++k) {
        const float left = to_float(a[row * 64 + k]);
        if (col < kListed) by_key += left * to_float(b[col * 64 + k]);
        by_value += left * to_float(v[k * 128 + col]);
      }
      if (keys[row * 128 + col] != by_key) ++(col < kListed ? wrong_keys : wrong_filled);
      if (values[row * 128 + col] != by_value) ++wrong_values;
    }
  }
  INFO("TMA writes rows of 128 bytes whose 16-byte chunks are swapped by row % 8");
  CHECK(wrong_box == 0);
  INFO("multiply_shared: descriptors of both factors, fragments of sums");
  CHECK(wrong_keys == 0);
  INFO("TMA fills rows past the matrix with zeros");
  CHECK(wrong_filled == 0);
  INFO("multiply_registers: fragments of the left factor, descriptor of a transposed right one");
  CHECK(wrong_values == 0);
}

}  // namespace hopper_test
