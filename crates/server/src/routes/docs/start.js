// No validator, which is another host's; and the key that is typed in is forgotten with the page.
SwaggerUIBundle({
  url: "/api/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  tryItOutEnabled: true,
  persistAuthorization: false,
  queryConfigEnabled: false,
  validatorUrl: null,
});
